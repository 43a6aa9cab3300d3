"""First weights in `standard`: torch's distributions from our own generator, the same bits on every machine."""

import pytest
import torch
from networks import build_icenet, network_settings

from mpitrain.config import load_run_config
from mpitrain.models.build import build_model
from mpitrain.models.first_weights import draw_initial_weights, has_own_initial_weights
from mpitrain.runs.build import ModelRequest
from mpitrain.runs.model import first_weights_notices
from mpitrain.train.checkpoint.format import weights_sha256

GOLDEN = "19ca8ada0c93"
SETTINGS = [
    {"name": "icenet", "hidden_size": 200},
    {"name": "mlp", "hidden_layers": 2, "hidden_size": 100, "batch_norm": True},
    {"name": "cnn", "hidden_layers": 2, "hidden_size": 24},
    {"name": "unet", "hidden_layers": 2, "hidden_size": 16},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["name"])
def test_each_parameter_has_torchs_distribution(settings):
    torchs, ours = (build_model(network_settings(**settings), 7, 2, seed=1) for _ in range(2))
    assert has_own_initial_weights(ours)
    draw_initial_weights(ours, seed=1)
    for (name, expected), drawn in zip(torchs.named_parameters(), ours.parameters(), strict=True):
        assert drawn.shape == expected.shape
        is_constant = bool((expected == expected.flatten()[0]).all())
        assert torch.equal(expected, drawn) == is_constant, name  # batch norm's stay
        if expected.numel() > 1000:
            largest = expected.abs().max().item()
            assert drawn.std().item() == pytest.approx(expected.std().item(), rel=0.1), name
            assert drawn.abs().max().item() == pytest.approx(largest, rel=0.3 if settings["name"] == "icenet" else 0.02)


def test_they_follow_the_seed_and_not_the_type_of_numbers():
    def drawn(seed, dtype=torch.float32):
        model = build_icenet(7, 4, "none", 0, dtype)
        draw_initial_weights(model, seed)
        return model

    def hashed(model):
        return weights_sha256(dict(model.float().named_parameters()))

    assert hashed(drawn(3)) == hashed(drawn(3)) == hashed(drawn(3, torch.float64)) != hashed(drawn(4))
    # Bit for bit, on every machine; C++ draws the same.
    assert hashed(drawn(0))[:12] == GOLDEN


def test_a_user_s_own_layers_are_left_alone_and_the_run_says_so():
    own, network = torch.nn.Linear(3, 2), load_run_config(None, ["model.name=networks:Own"]).config.network
    assert not has_own_initial_weights(own)
    (notice,) = first_weights_notices(ModelRequest(network), own)
    assert notice.startswith("model.name=networks:Own: torch draws its initial weights")
    icenet = network_settings(name="icenet")
    assert first_weights_notices(ModelRequest(icenet), build_model(icenet, 7, 1, 0)) == []
