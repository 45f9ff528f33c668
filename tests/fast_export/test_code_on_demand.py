"""Graph modules whose code is made when it is asked for behave as any others."""

from __future__ import annotations

import copy
import gc
import pickle

import torch
from torch import fx, nn

from openneutron.fast_export.code_on_demand import code_on_demand, share_code


def relu_twice() -> fx.GraphModule:
    return fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.ReLU()))


def test_code_is_that_of_the_graph_as_it_is_when_it_is_asked_for():
    plain = relu_twice()
    real = fx.GraphModule.recompile
    with code_on_demand():
        made = relu_twice()
        assert "forward" not in vars(made) and made.code == plain.code
        node = next(n for n in made.graph.nodes if n.op == "call_module")
        with made.graph.inserting_after(node):
            negated = made.graph.call_function(torch.neg, (node,))
        node.replace_all_uses_with(negated, delete_user_cb=lambda user: user is not negated)
        made.recompile()
        copied = copy.deepcopy(made)
    assert fx.GraphModule.recompile is real
    x = torch.tensor([1.0, -1.0])
    for module in (made, copied, pickle.loads(pickle.dumps(made))):
        assert torch.equal(module(x), torch.zeros(2)) and "neg" in module.code and "neg" in str(module)


def test_a_copy_has_the_code_of_its_source_until_it_is_changed():
    with code_on_demand():
        source = relu_twice()
        made = copy.deepcopy(source)
        share_code(source, made)
        assert type(made).forward is type(source).forward
        output = made.graph.output_node()
        output.args = (next(n for n in made.graph.nodes if n.op == "placeholder"),)
        made.recompile()
    x = torch.tensor([1.0, -1.0])
    assert torch.equal(made(x), x) and torch.equal(source(x), torch.tensor([1.0, 0.0]))


def test_contexts_may_lie_in_one_another():
    real = fx.GraphModule.recompile
    outer, inner = code_on_demand(), code_on_demand()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)  # as threads leave in any order
    assert fx.GraphModule.recompile is not real
    inner.__exit__(None, None, None)
    assert fx.GraphModule.recompile is real


def test_the_collector_leaves_older_objects_alone_meanwhile():
    assert gc.get_freeze_count() == 0
    with code_on_demand():
        count = gc.get_freeze_count()
        assert count > 10_000
        with code_on_demand():
            pass
        # A frozen object may still end with its last reference, in another thread too; what is thawed is all.
        assert count // 2 < gc.get_freeze_count() <= count
    assert gc.get_freeze_count() == 0


def test_what_an_application_froze_stays_so():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with code_on_demand():
            pass
        # A frozen object may still end with its last reference; what is thawed is all of them.
        assert 0 <= count - gc.get_freeze_count() < count // 2
    finally:
        gc.unfreeze()
