"""Samples on the workers of a cluster: the same weights as in one process, and as if no worker had died."""

import os
import signal

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.data import distributed as module

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.filterwarnings("default")  # raised by threads and processes of dask
MIXTURE = ga.mixture_model(np.array([[0.5, 0.1], [0.1, 0.3]]), means=0.4 * np.array([[1.0, -1.0], [1.0, -1.0]]))


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("dask"))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=folder, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def sentences(model=None, **options):
    return ga.sample(ga.paper_model() if model is None else model, 150, 1.5, seed=0, storage="none", **options)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (None, {"damping": 0.5}),
        (None, {"init": "positional", "risk": "asymptotic"}),
        (MIXTURE, {"damping": 0.5}),
        (ga.glm_model(ga.SquaredLoss(), ga.LinearLabels()), {"damping": 0.5}),
        (ga.paper_model(penalty=ga.ElasticNet(0.01, 0.001)), {"damping": 0.3}),
    ],
)
def test_weights_equal_the_weights_of_one_process(client, model, options):
    data = sentences(model)
    there = ga.DistributedDataset(data, client, 3)
    assert len(there.parts) == 3
    options = {"tol": 1e-5} | options
    found, expected = ga.run_gamp(there, **options), ga.run_gamp(data, accelerate=False, **options)
    assert expected.converged
    assert found.status is expected.status
    assert found.n_iter == expected.n_iter
    assert abs(found.Q - expected.Q).max() < 1e-10
    assert abs(found.state.D - expected.state.D).max() < 1e-9
    assert abs(found.state.z - expected.state.z).max() < 1e-9
    assert found.n_off_global == expected.n_off_global
    assert found.fixed_point


def test_settling_works_from_afar(client):
    data = sentences()
    found = ga.run_gamp(ga.DistributedDataset(data, client), damping=1.0, max_iter=300)
    assert not found.message_passing.converged
    assert found.status is ga.Status.SETTLED
    assert np.linalg.norm(ga.gradient(data, found.Q)) < 1.01e-8 * data.lam * np.sqrt(data.dim)


def test_an_iteration_sends_nothing_of_the_size_of_the_samples(client, monkeypatch):
    """Sizes of all arrays that are sent and received after the first iteration."""
    data = sentences()
    there = ga.DistributedDataset(data, client, 2)
    sent = []
    submit, gather = there.on_all, there.fetched

    def counting_submit(function, arguments):
        sent.extend(value.size for each in arguments for value in arrays(each))
        return submit(function, arguments)

    def counting_gather(futures):
        found = gather(futures)
        sent.extend(value.size for value in arrays(found))
        return found

    monkeypatch.setitem(vars(there), "on_all", counting_submit)
    monkeypatch.setitem(vars(there), "fetched", counting_gather)
    sizes = []

    def callback(t, state, report):
        sizes.append(max(sent))
        sent.clear()

    ga.run_gamp(there, damping=0.5, tol=0, max_iter=module.MAX_AGE + 5, callback=callback)
    assert sizes[0] >= data.n_samples
    small = [size <= data.Q_star.size for size in sizes[1:]]
    assert small.count(False) == 1  # the copy
    assert not small[module.MAX_AGE - 1]


def arrays(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from arrays(each)


@pytest.mark.parametrize("at", [3, module.MAX_AGE + 4])
def test_a_worker_that_is_killed_does_not_change_the_answer(client, at):
    data = sentences()
    expected = ga.run_gamp(data, damping=0.4)
    assert expected.n_iter > at
    killed = []

    def callback(t, state, report):
        if t == at:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    found = ga.run_gamp(ga.DistributedDataset(data, client), damping=0.4, callback=callback)
    assert killed
    assert found.status is expected.status
    assert abs(found.Q - expected.Q).max() < 1e-10


def test_labels_and_outputs_equal_those_in_the_dataset(client):
    for model in (ga.glm_model(ga.LogisticLoss()), None):
        data = sentences(model)
        there = ga.DistributedDataset(data, client)
        assert np.array_equal(there.outputs, data.outputs)
    labels = ga.DistributedDataset(sentences(ga.glm_model(ga.SquaredLoss())), client)
    assert np.array_equal(labels.outputs, labels.labels)
    with pytest.raises(TypeError, match="data: needs samples with outputs, not labels"):
        ga.fit_linear_baseline(labels)


def test_datasets_that_cannot_be_distributed_are_named(client):
    here = ga.sample(ga.paper_model(), 40, 1.0, seed=0)
    with pytest.raises(ValueError, match="data: needs tokens that workers can read"):
        ga.DistributedDataset(here, client)
    with pytest.raises(TypeError, match=r"client: needs a distributed.Client"):
        ga.DistributedDataset(sentences(), "tcp://localhost")
    with pytest.raises(ValueError, match="n_blocks: needs an integer >= 1"):
        ga.DistributedDataset(sentences(), client, 0)
    with pytest.raises(ValueError, match="accelerate: needs False"):
        ga.run_gamp(ga.DistributedDataset(sentences(), client), accelerate=True)
