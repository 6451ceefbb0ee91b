"""An independent oracle for the area shared by two sectors: quadrature over rays, in extended precision.

For each ray from A's apex the part inside B is an interval computation; the integral over rays is cut wherever the
integrand can have a kink and each part is integrated by tanh-sinh, which is exact for end-point singularities.
"""

import numpy as np

L = np.longdouble
PI = L("3.14159265358979323846264338327950288")


def _tanh_sinh(steps=48, reach=3.4):
    k = np.linspace(-reach, reach, 2 * steps + 1, dtype=L)
    inner = PI / 2 * np.sinh(k)
    # distance of the node from the nearer end, without cancellation
    share = np.exp(-np.abs(inner)) / (2 * np.cosh(inner))
    weight = (PI / 2 * np.cosh(k)) / (2 * np.cosh(inner) ** 2) * (k[1] - k[0])
    return k > 0, share, weight


RIGHT, SHARE, WEIGHT = _tanh_sinh()


def shared_area(xy_a, heading_a, radius_a, fov_a, xy_b, heading_b, radius_b, fov_b):
    """Area shared by two sectors (positions in metres, degrees clockwise from north)."""
    b = np.asarray(xy_b, L) - np.asarray(xy_a, L)
    ra, rb, half_a, half_b = L(radius_a), L(radius_b), L(fov_a) / 360 * PI, L(fov_b) / 360 * PI
    axis_a, axis_b = (PI / 2 - L(h) / 180 * PI for h in (heading_a, heading_b))
    cuts = _cuts(b, axis_a, half_a, ra, axis_b, half_b, rb)
    low, high = cuts[:-1, None], cuts[1:, None]
    u = np.where(RIGHT, high - (high - low) * SHARE, low + (high - low) * SHARE)
    value = _inside(np.cos(u), np.sin(u), b, ra, axis_b, half_b, rb)
    return float(((high - low) * WEIGHT * value).sum())


def _cuts(b, axis_a, half_a, ra, axis_b, half_b, rb):
    """Rays where the integrand may have a kink: corners, tangents, crossings."""
    d = np.hypot(*b)
    to_b = np.arctan2(b[1], b[0])
    angles = [to_b, to_b + PI / 2, to_b - PI / 2]
    if d > rb:
        angles += [to_b + np.arcsin(rb / d), to_b - np.arcsin(rb / d)]
    if d > 0:
        x = ((d - rb) * (d + rb) + ra * ra) / (2 * d)
        if abs(x) < ra:
            w = np.arccos(x / ra)
            angles += [to_b + w, to_b - w]
    for edge in (axis_b - half_b, axis_b + half_b):
        e = np.array([np.cos(edge), np.sin(edge)])
        corner = b + rb * e
        angles += [edge, edge + PI, np.arctan2(corner[1], corner[0])]
        foot, off = b @ e, b[0] * e[1] - b[1] * e[0]
        if abs(off) < ra:
            chord = np.sqrt((ra - off) * (ra + off))
            angles += [np.arctan2(*(b + s * e)[::-1]) for s in (-foot - chord, -foot + chord)]
    turns = np.array([a + k * 2 * PI for a in angles for k in range(-3, 4)], L)
    low, high = axis_a - half_a, axis_a + half_a
    return np.unique(np.concatenate([[low, high], turns[(turns > low) & (turns < high)]]))


def _inside(ex, ey, b, ra, axis_b, half_b, rb):
    """½ ∫ ρ dρ·2 over the part of each ray within A's radius that lies in B."""
    foot, off = ex * b[0] + ey * b[1], ex * b[1] - ey * b[0]
    chord = np.sqrt(np.maximum(L(0), (rb - off) * (rb + off)))
    hit = np.abs(off) < rb
    low, high = np.maximum(L(0), foot - chord), np.minimum(ra, foot + chord)
    low, high = np.where(hit, low, L(0)), np.where(hit, high, L(0))

    def half_plane(low, high, angle):
        nx, ny = np.cos(angle), np.sin(angle)
        slope, level = ex * nx + ey * ny, b[0] * nx + b[1] * ny
        limit = np.clip(level / np.where(slope == 0, L("1e-4000"), slope), -1e9, 1e9)
        return np.where(slope > 0, np.maximum(low, limit), low), np.where(slope > 0, high, np.minimum(high, limit))

    def measure(low, high):
        return np.where(high > low, (high - low) * (high + low) / 2, L(0))

    left, right = axis_b + half_b - PI / 2, axis_b - half_b + PI / 2
    both = measure(*half_plane(*half_plane(low, high, left), right))
    if half_b >= PI:
        return measure(low, high)
    if half_b <= PI / 2:
        return both
    return measure(*half_plane(low, high, left)) + measure(*half_plane(low, high, right)) - both
