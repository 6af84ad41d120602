// Fills, copies and imports; boxes packed for messages, and unpacked.

__kernel void fill(__global uchar *arena, View y, Extent e, int type, double value) {
    EACH_ELEMENT(e)
    put_element(arena, at(y, n, d, h, w, c), value, type, 0);
}

__kernel void copy(__global uchar *arena, View x, View y, Extent e, int type, int accumulate) {
    EACH_ELEMENT(e)
    put_element(arena, at(y, n, d, h, w, c), element(arena, at(x, n, d, h, w, c), type), type, accumulate);
}

inline ulong at_flat(View v, Extent e, uint number) {
    const uint c = number % e.n[4];
    return at_position(v, position(number / e.n[4], e)) + c;
}

// Both boxes in memory order.
__kernel void reshape(__global uchar *arena, View x, Extent of_x, View y, Extent of_y, uint count,
                      int type, int accumulate) {
    EACH_ITEM(item, count)
    const double value = element(arena, at_flat(x, of_x, item), type);
    put_element(arena, at_flat(y, of_y, item), value, type, accumulate);
}

// How imports transform a stored value.
enum { IDENTITY = 0, SCALE = 1, LOG_ONE_PLUS = 2 };

// x is (N, C, D, H, W), y is (N, D, H, W, C).
__kernel void import(__global uchar *arena, View x, View y, Extent e, int from, int to, int transform,
                     double factor) {
    EACH_ELEMENT(e)
    double value = element(arena, at(x, n, c, d, h, w), from);
    if (transform == SCALE) value *= factor;
    if (transform == LOG_ONE_PLUS) value = log1p((float)value);
    put_element(arena, at(y, n, d, h, w, c), value, to, 0);
}

// A box into packed elements of its own buffer, from a first one on.
__kernel void pack_box(__global const uchar *arena, View x, Extent e, int type, __global uchar *packed,
                       ulong first) {
    EACH_ELEMENT(e)
    const ulong to = first + dense_number(e, n, d, h, w, c);
    put_element(packed, to, element(arena, at(x, n, d, h, w, c), type), type, 0);
}

// And back, from the first one on.
__kernel void unpack_box(__global uchar *arena, View y, Extent e, int type, __global const uchar *packed,
                         int accumulate) {
    EACH_ELEMENT(e)
    const double value = element(packed, dense_number(e, n, d, h, w, c), type);
    put_element(arena, at(y, n, d, h, w, c), value, type, accumulate);
}
