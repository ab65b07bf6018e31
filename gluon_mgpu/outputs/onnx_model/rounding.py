"""How far rounding can move the results of a network, and what to say of larger differences."""
from ...networks.hybridize.graph_operators import Operator

TOLERANCE = 1e-5  # of the largest number in an output
SPECIAL_TOLERANCE = 1e-3  # for values far from the example, where rounding is larger, but a wrong branch larger still
ORDERING = 'topk', 'sort', 'argsort', 'boxnms'
FROM_CODE = 'MXNet may not trace some of its code, such as a branch on values or an overridden forward'
FROM_FILE = 'export a part of the network to find the operator, as in docs/export.md'
EQUAL_SCORES = ('{} may put numbers that are equal but for rounding, as before training, in another order: use trained '
                'parameters, or cut the network before it, as in docs/export.md')


def of_coordinates(operators: list[Operator]) -> float:
    """Return how far the rounding of coordinates moves results, relative to the largest number; 0 without resizing."""
    # MXNet and onnxruntime compute coordinates in float32, in other ways. Each rounding moves one by up to 2^-24 of the
    # size of the image, and a number between two pixels by as much of their difference, at most twice the largest
    return sum(2 * _roundings(op) * 2.0**-24 * sum(op.inputs[0].shape[2:]) for op in operators
               if _roundings(op))


def _roundings(op: Operator) -> int:
    """Return how often an operator rounds a coordinate, in both runtimes together."""
    if op.kind == 'bilinearresize2d':  # the scale, the product and, without corners, the shift by half a pixel
        return 3 if op.settings.get('align_corners', True) else 6
    return 12 if op.kind == 'roialign' else 0  # also the box and the place within it


def remark(operators: list[Operator], is_graph: bool) -> str:
    """Return the likely cause of a difference that rounding does not explain, with the remedy."""
    if ordering := next((op for op in operators if op.kind in ORDERING), None):
        return EQUAL_SCORES.format(ordering.node['op'])
    return FROM_FILE if is_graph else FROM_CODE
