"""Observation models: the posterior of the teacher's fields given targets or labels, for each kind of teacher."""

from gamp_attention.models.channels.channel import log_normal, response
from gamp_attention.models.channels.choice import channel_of
from gamp_attention.models.channels.classes import Seen, class_channel
from gamp_attention.models.channels.noiseless import fields_of_targets
