"""Limits of rounding in a network."""
from ...networks.graph_operators import Operator

TOLERANCE = 1e-5  # of the largest number in an output
SPECIAL_TOLERANCE = 1e-3  # for values far from the example, where rounding is larger, but a wrong branch larger still


def of_coordinates(operators: list[Operator]) -> float:
    """Return how far the rounding of coordinates moves results, relative to the largest number; 0 without resizing."""
    # MXNet and onnxruntime compute coordinates in float32, in other ways. Each rounding moves one by up to 2^-24 of the
    # size of the image, and a number between two pixels by as much of their difference, at most twice the largest
    return sum(2 * _roundings(op) * 2.0**-24 * sum(op.inputs[0].shape[2:]) for op in operators
               if _roundings(op))


def _roundings(op: Operator) -> int:
    """Return how often an operator rounds a coordinate, in both runtimes together."""
    if op.kind != 'bilinearresize2d':  # roialign: in the same way in both
        return 0
    return 3 if op.settings.get('align_corners', True) else 6  # the scale, the product, the shift by half a pixel
