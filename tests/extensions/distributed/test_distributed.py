"""Samples on the workers of a cluster: the same weights as in one process, also after a worker has died."""

import os
import signal

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.distributed import distributed as module

distributed = pytest.importorskip("distributed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # threads and processes of dask raise warnings
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


def draw_data(model=None, **options):
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
    data = draw_data(model)
    remote = ga.DistributedDataset(data, client, 3)
    assert len(remote.parts) == 3
    options = {"tol": 1e-5} | options
    result, expected = (
        ga.run_gamp(remote, **options),
        ga.run_gamp(data, **options, iteration=ga.IterationOptions(accelerate=False)),
    )
    assert expected.converged
    assert result.status is expected.status
    assert result.n_iter == expected.n_iter
    assert abs(result.Q - expected.Q).max() < 1e-10
    assert abs(result.state.D - expected.state.D).max() < 1e-9
    assert abs(result.state.z - expected.state.z).max() < 1e-9
    assert result.n_off_global == expected.n_off_global
    assert result.fixed_point


def test_descents_after_message_passing_run_on_the_workers(client):
    data = draw_data()
    result = ga.run_gamp(ga.DistributedDataset(data, client), damping=1.0, max_iter=300)
    assert not result.message_passing.converged
    assert result.status is ga.Status.SETTLED
    assert np.linalg.norm(ga.gradient(data, result.Q)) < 1.01e-8 * data.lam * np.sqrt(data.dim)


@pytest.mark.parametrize("at", [3, module.MAX_AGE + 4])
def test_a_killed_worker_does_not_change_the_result(client, at):
    data = draw_data()
    expected = ga.run_gamp(data, damping=0.4)
    assert expected.n_iter > at
    killed = []

    def callback(t, state, report):
        if t == at:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    result = ga.run_gamp(
        ga.DistributedDataset(data, client), damping=0.4, iteration=ga.IterationOptions(callback=callback)
    )
    assert killed
    assert result.status is expected.status
    assert abs(result.Q - expected.Q).max() < 1e-10


def test_labels_and_outputs_equal_the_dataset(client):
    for model in (ga.glm_model(ga.LogisticLoss()), None):
        data = draw_data(model)
        remote = ga.DistributedDataset(data, client)
        assert np.array_equal(remote.outputs, data.outputs)
    labels = ga.DistributedDataset(draw_data(ga.glm_model(ga.SquaredLoss())), client)
    assert np.array_equal(labels.outputs, labels.labels)
    with pytest.raises(TypeError, match="data: needs samples with outputs, not labels"):
        ga.fit_linear_baseline(labels)


def test_datasets_that_cannot_be_distributed_raise_named_errors(client):
    local = ga.sample(ga.paper_model(), 40, 1.0, seed=0)
    with pytest.raises(ValueError, match="data: needs tokens that workers can read"):
        ga.DistributedDataset(local, client)
    with pytest.raises(TypeError, match=r"client: needs a distributed.Client"):
        ga.DistributedDataset(draw_data(), "tcp://localhost")
    with pytest.raises(ValueError, match="n_blocks: needs an integer >= 1"):
        ga.DistributedDataset(draw_data(), client, 0)
    with pytest.raises(ValueError, match="accelerate: needs False"):
        ga.run_gamp(ga.DistributedDataset(draw_data(), client), iteration=ga.IterationOptions(accelerate=True))
