from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.layers import LAYERS, BoundedVerbs, Factory, Layer, Verbs


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Iterator[Layer]:
    factory: Factory = request.param
    with factory(request) as made:
        needed = request.node.get_closest_marker("needs")
        missing = made.lacks.intersection(needed.args) if needed else ()
        if missing:
            pytest.skip(f"this layer has no {', '.join(sorted(missing))}")
        yield made


@pytest.fixture
def queue(layer: Layer) -> Verbs:
    return layer.queue


@pytest.fixture
def bounded(layer: Layer) -> Callable[[int], BoundedVerbs]:
    if layer.bounded is None:
        pytest.skip("this layer has no bounds")
    return layer.bounded


@pytest.fixture
def advance(layer: Layer) -> Callable[[float], None]:
    return layer.advance
