// Over the channels of a position: softmax, layer norm, sums of products.

#define EACH_ROW(e)                                                  \
    EACH_ITEM(item, (e).n[0] * (e).n[1] * (e).n[2] * (e).n[3])       \
    const Position p = position(item, e);                            \
    const uint channels = (e).n[4];

__kernel void softmax_forward(__global uchar *arena, View x, View y, Extent e) {
    EACH_ROW(e)
    const ulong from = at_position(x, p), to = at_position(y, p);
    float most = -INFINITY, total = 0;
    for (uint c = 0; c < channels; ++c) most = fmax(most, act(arena, from + c));
    for (uint c = 0; c < channels; ++c) total += exp(act(arena, from + c) - most);
    for (uint c = 0; c < channels; ++c) put_act(arena, to + c, exp(act(arena, from + c) - most) / total, 0);
}

__kernel void softmax_backward(__global uchar *arena, View y, View dy, View dx, Extent e, int accumulate) {
    EACH_ROW(e)
    const ulong of_y = at_position(y, p), of_dy = at_position(dy, p), to = at_position(dx, p);
    float sum = 0;
    for (uint c = 0; c < channels; ++c) sum += act(arena, of_y + c) * act(arena, of_dy + c);
    for (uint c = 0; c < channels; ++c)
        put_act(arena, to + c, act(arena, of_y + c) * (act(arena, of_dy + c) - sum), accumulate);
}

// y is (N, D, H, W, 1).
__kernel void multiply_channel_sum(__global uchar *arena, View a, View b, View y, Extent e, int accumulate) {
    EACH_ROW(e)
    const ulong of_a = at_position(a, p), of_b = at_position(b, p);
    float sum = 0;
    for (uint c = 0; c < channels; ++c) sum += act(arena, of_a + c) * act(arena, of_b + c);
    put_act(arena, at_position(y, p), sum, accumulate);
}

// The first sum is 0 in an RMS norm.
__kernel void layer_norm_statistics(__global uchar *arena, View x, View sums, Extent e, int rms) {
    EACH_ROW(e)
    const ulong from = at_position(x, p), to = at_position(sums, p);
    double sum = 0, squares = 0;
    for (uint c = 0; c < channels; ++c) {
        const double value = act(arena, from + c);
        sum += value;
        squares += value * value;
    }
    put_f64(arena, to, rms ? 0 : sum, 0);
    put_f64(arena, to + 1, squares, 0);
}

// Mean and inverse deviation of a position.
inline float2 row_scale(__global const uchar *arena, ulong sums, double count, double epsilon) {
    const double mean = f64(arena, sums) / count;
    const double variance = fmax(f64(arena, sums + 1) / count - mean * mean, 0.0);
    return (float2)((float)mean, (float)(1 / sqrt(variance + epsilon)));
}

__kernel void layer_norm_forward(__global uchar *arena, View x, View sums, View y, Extent e, ulong gamma, ulong beta,
                                 double count, double epsilon) {
    EACH_ROW(e)
    const float2 scale = row_scale(arena, at_position(sums, p), count, epsilon);
    const ulong from = at_position(x, p), to = at_position(y, p);
    for (uint c = 0; c < channels; ++c) {
        const float normalized = (act(arena, from + c) - scale.x) * scale.y;
        put_act(arena, to + c, normalized * f32(arena, gamma + c) + f32(arena, beta + c), 0);
    }
}

__kernel void layer_norm_backward_statistics(__global uchar *arena, View x, View sums, View dy, View gradient_sums,
                                             Extent e, ulong gamma, double count, double epsilon, int rms) {
    EACH_ROW(e)
    const float2 scale = row_scale(arena, at_position(sums, p), count, epsilon);
    const ulong of_x = at_position(x, p), of_dy = at_position(dy, p), to = at_position(gradient_sums, p);
    double sum = 0, scaled = 0;
    for (uint c = 0; c < channels; ++c) {
        const float gradient = act(arena, of_dy + c) * f32(arena, gamma + c);
        sum += gradient;
        scaled += gradient * ((act(arena, of_x + c) - scale.x) * scale.y);
    }
    put_f64(arena, to, rms ? 0 : sum, 0);
    put_f64(arena, to + 1, scaled, 0);
}

__kernel void layer_norm_backward_data(__global uchar *arena, View x, View sums, View dy, View gradient_sums, View dx,
                                       Extent e, ulong gamma, double count, double epsilon, int accumulate) {
    EACH_ROW(e)
    const float2 scale = row_scale(arena, at_position(sums, p), count, epsilon);
    const ulong of_sums = at_position(gradient_sums, p);
    const float mean = (float)(f64(arena, of_sums) / count), slope = (float)(f64(arena, of_sums + 1) / count);
    const ulong of_x = at_position(x, p), of_dy = at_position(dy, p), to = at_position(dx, p);
    for (uint c = 0; c < channels; ++c) {
        const float normalized = (act(arena, of_x + c) - scale.x) * scale.y;
        const float gradient = act(arena, of_dy + c) * f32(arena, gamma + c);
        put_act(arena, to + c, scale.y * (gradient - mean - normalized * slope), accumulate);
    }
}

// The gradient of the rows of a table by the class number of each position; one element of the table each.
__kernel void embedding_backward(__global uchar *arena, View x, View dy, Extent e, View dw, Extent table,
                                 int accumulate) {
    EACH_ITEM(item, table.n[3] * table.n[4])
    const uint c = item % table.n[4], row = item / table.n[4];
    const uint count = e.n[0] * sample_positions(e);
    double sum = 0;
    Position p = position(0, e);
    for (uint i = 0; i < count; ++i, p = after(p, e))
        if (act(arena, at_position(x, p)) == row) sum += act(arena, at_position(dy, p) + c);
    put_f32(arena, at(dw, 0, 0, 0, row, c), (float)sum, accumulate);
}

// The gradient of the rows of positions; one element of the table each.
__kernel void position_embedding_backward(__global uchar *arena, View dy, Extent e, View dw, Extent table, Extent corner,
                                          Extent whole, int accumulate) {
    EACH_ITEM(item, table.n[3] * table.n[4])
    const uint c = item % table.n[4], row = item / table.n[4];
    // Below 0 where the row belongs to another rank.
    const int d = (int)(row / (whole.n[2] * whole.n[3])) - (int)corner.n[1];
    const int h = (int)(row / whole.n[3] % whole.n[2]) - (int)corner.n[2];
    const int w = (int)(row % whole.n[3]) - (int)corner.n[3];
    const int is_here = d >= 0 && d < (int)e.n[1] && h >= 0 && h < (int)e.n[2] && w >= 0 && w < (int)e.n[3];
    double sum = 0;
    for (uint n = 0; is_here && n < e.n[0]; ++n) sum += act(arena, at(dy, n, d, h, w, c));
    put_f32(arena, at(dw, 0, 0, 0, row, c), (float)sum, accumulate);
}

// Writes the number of the check and a class number that is none to `invalid_class`.
__kernel void check_classes(__global const uchar *arena, View x, Extent e, int type, uint classes, int ignores,
                            double ignore, __global double *invalid_class, uint check) {
    EACH_ITEM(item, e.n[0] * sample_positions(e))
    const double number = element(arena, at_position(x, position(item, e)), type);
    if (ignores && number == ignore) return;
    if (number >= 0 && number < classes && floor(number) == number) return;
    invalid_class[0] = check;
    invalid_class[1] = number;
}
