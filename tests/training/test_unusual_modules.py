"""Modules as nobody here writes them: traced and trained as they are, or refused in one true line."""

from __future__ import annotations

import pytest
import torch
from tests.training import unusual_modules
from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.foundation.own import own_name
from calib.microbench.layers.operators import operator_call, operator_inputs
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.model.spec import ModelSpec
from calib.oracle.template import EVERY
from calib.oracle.trace.layer_list import LayerList
from calib.oracle.trace.profiled import profile
from calib.oracle.trace.tracing import NotTraced
from calib.training.checks.own import described, seeded, traced
from calib.training.layer_program import layer_program
from calib.training.models import built, entry
from calib.training.step import loss_function, synthetic_batch

BATCH = 3
TRACED = {
    "Adapted": (6,),
    "FrozenStem": (3, 8, 8),
    "Empty": (4, 8),
    "Bag": (6,),
    "OneHot": (4,),
    "Spectrum": (8,),
    "Faked": (8,),
    "PlainTensor": (8,),
    "weight_norm": (8,),
    "spectral_norm": (8,),
    "Named": (8,),
    "double": (8,),
    "Unused": (8,),
    "Dropped": (8,),
    "Probed": (8,),
    "Chooses": (8,),
}
# the weights that PyTorch leaves without a gradient
UNTRAINED = {
    "Unused": {"scale", "spare.weight", "spare.bias"},
    "Dropped": {f"pooler.{at}.{of}" for at in (0, 1) for of in ("weight", "bias")},
    "Probed": {
        *(f"trunk.{at}.{of}" for at in (0, 1) for of in ("weight", "bias")),
        *("other.weight", "other.bias"),
    },
    "Chooses": {"gate.weight", "gate.bias"},
}
EACH = pytest.mark.parametrize("name", sorted(TRACED))


def words_of(name: str) -> str:
    return f"{unusual_modules.__name__}:{name}"


def spec_of(name: str) -> ModelSpec:
    return traced(words_of(name), TRACED[name], name, "cross_entropy")


@EACH
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_parameters_are_those_that_are_trained(name: str) -> None:
    weights = {of: w for of, w in getattr(unusual_modules, name)().named_parameters()}
    trained = {of: w.numel() for of, w in weights.items() if w.requires_grad}
    spec = spec_of(name)
    assert spec.all_items == sum(trained.values())
    without = UNTRAINED.get(name, set())
    assert {of: tuple(weights[of].shape) for of in without} == spec.untrained
    assert spec.parameter_items == spec.all_items - sum(trained[of] for of in without)


@EACH
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_the_record_says_what_the_forward_shows(name: str) -> None:
    """Kind of inputs, outputs and places of the loss."""
    assert spec_of(name).own == described(words_of(name), TRACED[name], "cross_entropy")


@EACH
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_a_program_is_its_module(name: str) -> None:
    """Losses, gradients and buffers after two steps."""
    own = described(words_of(name), TRACED[name], "cross_entropy")
    about = entry(own_name(own.built_by), own)
    module, other = built(about, 3).float().train(), built(about, 3).float().train()
    program = layer_program(other, about, BATCH)
    inputs, targets = synthetic_batch(about, BATCH, 1)

    def stepped(run: nn.Module) -> Tensor:
        loss: Tensor = loss_function(about)(run(inputs), targets)
        loss.backward()
        return loss

    for _ in range(2):
        torch.testing.assert_close(stepped(program), stepped(module))
    wanted = {key: of for key, of in module.named_parameters() if of.grad is not None}
    found = {key: of for key, of in program.trained() if of.grad is not None}
    assert found.keys() == wanted.keys()
    every = {key for key, of in module.named_parameters() if of.requires_grad}
    assert every - wanted.keys() == UNTRAINED.get(name, set()) == {*own.untrained}
    for key, weight in found.items():
        torch.testing.assert_close(weight.grad, wanted[key].grad)
    for (_, ours), (key, buffer) in zip(other.named_buffers(), module.named_buffers(), strict=True):
        torch.testing.assert_close(ours, buffer, msg=key)


@EACH
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_every_strategy_has_an_answer(name: str) -> None:
    """A division that the model allows, or a line that says why it does not."""
    spec = spec_of(name)
    for template in EVERY:
        division = template.division(2, 4, 2, spec)
        assert all(why_impossible(spec, fitted(spec, division)))


def test_what_is_before_the_first_trained_weight_has_no_backward() -> None:
    needs = {layer.name: layer.needs_input_grad for layer in spec_of("FrozenStem").layers}
    assert not needs["stem.0"] and not needs["stem.1"] and not needs["head"]
    assert needs["loss"]


@pytest.mark.parametrize(
    ("name", "said", "runs"),
    [
        ("StraightThrough", "_Sign is an autograd.Function with a backward of its own", True),
        ("Loop", "it loops over the samples of a batch", True),
        ("Chosen", "the size of its result depends on data", True),
        ("Force", "uses a tensor beside autograd", True),
        ("SetData", "uses a tensor beside autograd", True),
        ("Complex", "its weight filter is complex64, and calib's are floats", True),
        ("Stopped", "a tensor with a gradient: a no_grad or detach is in it", False),
        ("Exits", "SystemExit: 3", False),
        ("PythonsSkips", "draws numbers by Python's or NumPy's generator", True),
        ("Inference", "has an inference_mode, which no graph shows", True),
        ("CompiledForward", "CompiledForward.forward is compiled", True),
        ("CompiledFunction", "line .*: doubled is compiled", True),
        ("CompiledPart", "layer of the model CompiledPart .* is compiled", True),
    ],
)
def test_what_a_graph_does_not_show_is_refused(name: str, said: str, runs: bool) -> None:
    """`runs`: it may be profiled as one layer."""
    with pytest.raises(InputError, match=said) as caught:
        traced(words_of(name), (8,), name, "cross_entropy")
    assert isinstance(caught.value, NotTraced) == runs


def test_a_sparse_gradient_is_refused() -> None:
    with pytest.raises(NotTraced, match=r"its gradient is sparse \(sparse=True\)"):
        traced(words_of("SparseTable"), (6,), "sparse", "cross_entropy")


def test_what_is_before_a_stop_has_no_backward() -> None:
    spec = spec_of("Probed")
    assert spec.stopped == spec.untrained and not spec.unused
    needs = [layer.name for layer in spec.layers if layer.needs_input_grad]
    assert needs == ["loss"]
    assert [layer.name for layer in spec.layers if layer.shape.parameter_shapes] == ["head"]
    of = spec_of("Dropped")
    assert of.unused == of.untrained and [layer.name for layer in of.layers] == ["head", "loss"]


def test_a_layer_left_out_at_random_is_trained() -> None:
    """By several tries: no weight that one forward left out is taken for unused."""
    assert described(words_of("Skips"), (8,), "cross_entropy").untrained == ()
    assert traced(words_of("Skips"), (8,), "skips", "cross_entropy", profile).unused == {}


@pytest.mark.parametrize("name", sorted(UNTRAINED))
def test_a_profile_has_weights_without_gradient_beside_it(name: str) -> None:
    spec = traced(words_of(name), (8,), name, "cross_entropy", profile)
    assert spec.unused.keys() == UNTRAINED[name]
    assert spec.own == described(words_of(name), (8,), "cross_entropy")


PROFILED = ["StraightThrough", "Force", "Complex", "double", "scripted"]


@pytest.mark.parametrize("name", [*PROFILED, "CompiledForward", "CompiledFunction", "CompiledPart"])
def test_what_is_not_traced_is_profiled(name: str) -> None:
    spec = traced(words_of(name), (8,), name, "cross_entropy", profile)
    assert spec.is_profiled and spec.parameter_items
    assert spec.own == described(words_of(name), (8,), "cross_entropy")


def test_a_profile_holds_frozen_weights_apart() -> None:
    spec = traced(words_of("Adapted"), (6,), "adapted", "cross_entropy", profile)
    of = spec.layers[0].shape.operator
    assert of is not None and spec.parameter_items == 2 * 16 + 45
    assert [size for size, _ in of.constants] == [(30, 8), (8, 8), (8,), (8,), (8,)]


def test_complex_weights_and_sparse_buffers_train() -> None:
    for name in ("Complex", "Sparse"):
        own = described(words_of(name), (8,), "cross_entropy")
        assert own.outputs == 5 and not own.rows
        seeded(own)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Replaced", "changes its own weights"),
        ("without_data", "is on the meta device and has no weights to train"),
    ],
)
def test_what_cannot_be_trained_is_refused(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        described(words_of(name), (8,), "cross_entropy")


def test_bags_begin_in_order_where_one_is_measured_by_itself() -> None:
    (layer,) = [of for of in spec_of("Bag").layers if of.shape.name == "embedding_bag"]
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    inputs = operator_inputs(layer.shape, 4, torch.float32, cpu, False, generator)
    assert [each.tolist() for each in inputs[1:]] == [[0, 6, 12, 18]]
    summed, *_ = operator_call(layer.shape, 4, cpu)(*inputs, torch.ones(20, 8))
    assert torch.equal(summed, torch.full((4, 8), 6.0))


def test_names_are_numbered_in_their_order() -> None:
    layers = LayerList(nn.Linear(8, 5), (8,))
    for name in ("sin", "sin", "sin#2", "sin"):
        layers.append(layers.unique(name), "relu", ("input",), (8,))
    assert [layer.name for layer in layers.layers] == ["sin", "sin#2", "sin#2#2", "sin#3"]
