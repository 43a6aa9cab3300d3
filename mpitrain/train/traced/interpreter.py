"""Conversion of a recorded graph of tensor operations to a TorchScript function, which its interpreter runs."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node


def interpreted(graph: GraphModule) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Return `graph` as a function of its inputs followed by its constant tensors, and these constants.

    `graph` calls only torch's operators, with fixed shapes. The function runs without Python and without autograd.
    """
    _drop_what_changes_nothing(graph)
    paths = {node.name: str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    constants = {name: operator.attrgetter(path)(graph).detach() for name, path in paths.items()}
    inputs = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    lines = [_line_of(node) for node in graph.graph.nodes if node.op in ("call_function", "output")]
    arguments = ", ".join(f"{name}: Tensor" for name in (*inputs, *constants))
    source = "\n    ".join([f"def run({arguments}) -> Tensor:", *lines]) + "\n"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript warns of its deprecation at each use
        run = cast(Any, torch.jit.CompilationUnit)(source).run

    def without_gradients(*values: torch.Tensor) -> Any:
        # Without the optimisation of later calls for the shapes of the first one: each call computes the same bits.
        with torch.no_grad(), torch.jit.optimized_execution(False):
            return run(*values)

    return without_gradients, list(constants.values())


def _drop_what_changes_nothing(graph: GraphModule) -> None:
    """Remove views of the same shape and products with 1: each costs as much as a small matrix product."""
    for node in graph.graph.nodes:
        source = node.args[0] if node.args else None
        if node.op == "call_function" and isinstance(source, Node) and _gives_its_input(node, source):
            node.replace_all_uses_with(source)
    graph.graph.eliminate_dead_code()


def _gives_its_input(node: Node, source: Node) -> bool:
    aten = torch.ops.aten
    is_view = node.target in (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.detach.default)
    is_product = node.target == aten.mul.Scalar and node.args[1] == 1
    value, before = node.meta.get("val"), source.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(before, torch.Tensor):
        return False
    same_shape = (value.shape, value.stride(), value.dtype) == (before.shape, before.stride(), before.dtype)
    return same_shape and bool(is_view or is_product)


def _line_of(node: Node) -> str:
    if node.op == "output":
        return f"return {_text(node.args[0])}"
    if node.target is operator.getitem:
        return f"{node.name} = {_text(node.args[0])}[{node.args[1]}]"
    target = cast(torch._ops.OpOverload, node.target)
    kinds = {argument.name: str(argument.type) for argument in target._schema.arguments}
    tokens = [_text(value, kind) for value, kind in zip(node.args, kinds.values(), strict=False)]
    tokens += [f"{key}={_text(value, kinds[key])}" for key, value in node.kwargs.items()]
    namespace, name = target._schema.name.split("::")
    return f"{node.name} = torch.ops.{namespace}.{name}({', '.join(tokens)})"


def _text(value: Any, kind: str = "") -> str:
    """Return the source text of an argument of the schema's type `kind`."""
    if isinstance(value, (list, tuple)):
        # The type of an empty list cannot be inferred.
        return f"[{', '.join(map(_text, value))}]" if value else f"torch.jit.annotate({kind}, [])"
    if kind == "Tensor" and isinstance(value, (int, float)):
        return f"torch.tensor({value})"
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, float) and abs(value) == float("inf"):
        return f'float("{value}")'
    return str(value)
