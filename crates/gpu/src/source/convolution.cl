// Convolutions, their gradients, and linear layers, whose window is the whole of a sample.
//
// A work-item computes a tile of results in registers. Sums may be taken in parts (of taps and channels, or of
// positions), which lie in the workspace one after the other and are added up in their order.

// Along W, and along channels.
#define TILE_W 4
#define TILE_C 4

// Of a group: channels of the inputs and of the outputs.
typedef struct {
    uint inputs, outputs, groups;
} Channels;

inline int is_whole(uint first, uint all) {
    return first + TILE_C <= all;
}

inline uint quads(uint channels) {
    return (channels + TILE_C - 1) / TILE_C;
}

// Weights (tap, input, output) of a group as (tap, output, input): `y` is (tap, group, output, input).
__kernel void transpose_weights(__global uchar *arena, ulong w, ulong y, uint taps, Channels ch) {
    const uint all = taps * ch.inputs * ch.outputs * ch.groups;
    EACH_ITEM(item, all)
    const uint i = item % ch.inputs;
    uint rest = item / ch.inputs;
    const uint o = rest % ch.outputs;
    rest /= ch.outputs;
    const uint g = rest % ch.groups, tap = rest / ch.groups;
    const ulong from = ((ulong)tap * ch.inputs + i) * ch.outputs * ch.groups + g * ch.outputs + o;
    put_f32(arena, y + item, f32(arena, w + from), 0);
}

// The weights of a tile, so many elements apart.
inline void load_weights(float weights[TILE_C], __global const float *first, uint pitch, uint room) {
    if (room >= TILE_C && pitch == 1) {
#pragma unroll
        for (int j = 0; j < TILE_C; ++j) weights[j] = first[j];
    } else {
#pragma unroll
        for (int j = 0; j < TILE_C; ++j) weights[j] = j < (int)room ? first[(ulong)j * pitch] : 0;
    }
}

// Multiplies one input of each position with a row of weights.
inline void multiply_add(float sums[TILE_W][TILE_C], const float values[TILE_W], __global const float *row, uint pitch,
                         uint room) {
    float weights[TILE_C];
    load_weights(weights, row, pitch, room);
#pragma unroll
    for (int i = 0; i < TILE_W; ++i)
#pragma unroll
        for (int j = 0; j < TILE_C; ++j) sums[i][j] = fma(values[i], weights[j], sums[i][j]);
}

// Stores a tile in y, or in the part of the sums.
inline void put_tile(__global uchar *arena, float sums[TILE_W][TILE_C], View y, Extent e, Position p, uint channel,
                     uint room, Epilogue last, uint parts, uint part, ulong partial) {
    const uint channels = e.n[4];
    for (int i = 0; i < TILE_W; ++i) {
        const uint w = p.w + i;
        if (w >= e.n[3]) break;
        const ulong number = (((ulong)p.n * e.n[1] + p.d) * e.n[2] + p.h) * e.n[3] + w;
        for (int j = 0; j < TILE_C; ++j) {
            if (j >= (int)room) break;
            const uint c = channel + j;
            if (parts > 1) {
                const ulong all = (ulong)e.n[0] * sample_positions(e) * channels;
                put_f32(arena, partial + part * all + number * channels + c, sums[i][j], 0);
            } else {
                put_result(arena, y, last, p.n, p.d, p.h, w, c, sums[i][j]);
            }
        }
    }
}

// The tile of this work-item: channels [first, first + room) of group g, positions from p on along W.
#define EACH_TILE(e, width, groups, parts)                                                          \
    const uint tiles_c_ = quads(width), tiles_w_ = ((e).n[3] + TILE_W - 1) / TILE_W;                \
    const uint rows_ = (e).n[0] * (e).n[1] * (e).n[2];                                              \
    EACH_ITEM(item, tiles_c_ * (groups) * tiles_w_ * rows_ * (parts))                               \
    const uint first = item % tiles_c_ * TILE_C;                                                    \
    uint rest_ = item / tiles_c_;                                                                   \
    const uint g = rest_ % (groups);                                                                \
    rest_ /= (groups);                                                                              \
    Position p;                                                                                     \
    p.w = rest_ % tiles_w_ * TILE_W;                                                                \
    rest_ /= tiles_w_;                                                                              \
    p.h = rest_ % (e).n[2];                                                                         \
    rest_ /= (e).n[2];                                                                              \
    p.d = rest_ % (e).n[1];                                                                         \
    rest_ /= (e).n[1];                                                                              \
    p.n = rest_ % (e).n[0];                                                                         \
    const uint part = rest_ / (e).n[0];                                                             \
    const uint room = min((width) - first, (uint)TILE_C);

// Of y = sum over taps and channels of x[o * stride + k * dilation, c] w[k, c, f]; a part has `stretch` of the pairs of
// tap and channel.
__kernel void convolution_forward(__global uchar *arena, View x, View y, Extent e, Taps t, Channels ch, ulong w,
                                  Epilogue last, uint parts, uint stretch, ulong partial) {
    EACH_TILE(e, ch.outputs, ch.groups, parts)
    const uint all = t.count[0] * t.count[1] * t.count[2] * ch.inputs;
    const uint pitch = ch.outputs * ch.groups;
    uint number = part * stretch;
    const uint end = min(number + stretch, all);
    float sums[TILE_W][TILE_C];
    ulong at_x[TILE_W];
    for (int i = 0; i < TILE_W; ++i) {
        // Positions beyond the row read the last one, and are not stored.
        const uint ow = min(p.w + i, e.n[3] - 1);
        at_x[i] = at(x, p.n, p.d * t.stride[0], p.h * t.stride[1], ow * t.stride[2], g * ch.inputs);
        for (int j = 0; j < TILE_C; ++j) sums[i][j] = 0;
    }
    while (number < end) {
        const uint tap = number / ch.inputs, c0 = number % ch.inputs;
        const uint c1 = min(ch.inputs, c0 + end - number);
        const uint kw = tap % t.count[2], kh = tap / t.count[2] % t.count[1], kd = tap / t.count[2] / t.count[1];
        const ulong move = kd * t.dilation[0] * x.pitch[1] + kh * t.dilation[1] * x.pitch[2] +
                           kw * t.dilation[2] * x.pitch[3];
        __global const float *row =
            (__global const float *)arena + w + ((ulong)tap * ch.inputs + c0) * pitch + g * ch.outputs + first;
        for (uint c = c0; c < c1; ++c, row += pitch) {
            float values[TILE_W];
#pragma unroll
            for (int i = 0; i < TILE_W; ++i) values[i] = act(arena, at_x[i] + move + c);
            multiply_add(sums, values, row, 1, room);
        }
        number += c1 - c0;
    }
    put_tile(arena, sums, y, e, p, g * ch.outputs + first, room, last, parts, part, partial);
}

// Of dx, whose box is `e`, from turned weights (tap, group, f, c) or from (tap, c, group, f); outputs outside of dy count as zero. A part has `stretch` of
// the pairs of tap and f.
__kernel void convolution_backward_data(__global uchar *arena, View dy, Extent of_y, View dx, Extent e, Taps t,
                                        Channels ch, ulong w, int is_turned, Epilogue last, uint parts, uint stretch,
                                        ulong partial) {
    EACH_TILE(e, ch.inputs, ch.groups, parts)
    // Between weights of neighboring channels of the tile, and of neighboring f.
    const uint pitch = is_turned ? 1 : ch.outputs * ch.groups, step = is_turned ? ch.inputs : 1;
    const uint all = t.count[0] * t.count[1] * t.count[2] * ch.outputs;
    uint number = part * stretch;
    const uint end = min(number + stretch, all);
    float sums[TILE_W][TILE_C];
    for (int i = 0; i < TILE_W; ++i)
        for (int j = 0; j < TILE_C; ++j) sums[i][j] = 0;
    while (number < end) {
        const uint tap = number / ch.outputs, f0 = number % ch.outputs;
        const uint f1 = min(ch.outputs, f0 + end - number);
        number += f1 - f0;
        const int kw = tap % t.count[2], kh = tap / t.count[2] % t.count[1], kd = tap / t.count[2] / t.count[1];
        const int od = (int)p.d + t.shift[0] - kd * t.dilation[0];
        const int oh = (int)p.h + t.shift[1] - kh * t.dilation[1];
        if (od < 0 || od % t.stride[0] || od / t.stride[0] >= (int)of_y.n[1]) continue;
        if (oh < 0 || oh % t.stride[1] || oh / t.stride[1] >= (int)of_y.n[2]) continue;
        ulong at_y[TILE_W];
        int inside[TILE_W], some = 0;
        for (int i = 0; i < TILE_W; ++i) {
            const int ow = (int)p.w + i + t.shift[2] - kw * t.dilation[2];
            inside[i] = ow >= 0 && ow % t.stride[2] == 0 && ow / t.stride[2] < (int)of_y.n[3];
            some |= inside[i];
            at_y[i] = at(dy, p.n, od / t.stride[0], oh / t.stride[1], inside[i] ? ow / t.stride[2] : 0,
                         g * ch.outputs);
        }
        if (!some) continue;
        const ulong start = is_turned ? (((ulong)tap * ch.groups + g) * ch.outputs + f0) * ch.inputs + first
                                      : ((ulong)tap * ch.inputs + first) * pitch + g * ch.outputs + f0;
        __global const float *row = (__global const float *)arena + w + start;
        for (uint f = f0; f < f1; ++f, row += step) {
            float values[TILE_W];
#pragma unroll
            for (int i = 0; i < TILE_W; ++i) {
                // Read in any case, which is faster than to branch.
                const float value = act(arena, at_y[i] + f);
                values[i] = inside[i] ? value : 0;
            }
            multiply_add(sums, values, row, pitch, room);
        }
    }
    put_tile(arena, sums, dx, e, p, g * ch.inputs + first, room, last, parts, part, partial);
}

// Of dw (tap, c, f): sums over positions, of which a part has `stretch`.
__kernel void convolution_backward_weight(__global uchar *arena, View x, View dy, Extent of_y, Taps t, Channels ch,
                                          ulong dw, int accumulate, uint parts, uint stretch, ulong partial) {
    const uint taps = t.count[0] * t.count[1] * t.count[2];
    const uint tiles_f = quads(ch.outputs), tiles_c = quads(ch.inputs);
    EACH_ITEM(item, tiles_f * ch.groups * tiles_c * taps * parts)
    const uint f0 = item % tiles_f * TILE_C;
    uint rest = item / tiles_f;
    const uint g = rest % ch.groups;
    rest /= ch.groups;
    const uint c0 = rest % tiles_c * TILE_C;
    rest /= tiles_c;
    const uint tap = rest % taps, part = rest / taps;
    const uint kw = tap % t.count[2], kh = tap / t.count[2] % t.count[1], kd = tap / t.count[2] / t.count[1];
    const uint room_c = min(ch.inputs - c0, (uint)TILE_C), room_f = min(ch.outputs - f0, (uint)TILE_C);
    const uint all = of_y.n[0] * sample_positions(of_y);
    const uint begin = part * stretch, end = min(begin + stretch, all);
    float sums[TILE_W][TILE_C];
    for (int i = 0; i < TILE_W; ++i)
        for (int j = 0; j < TILE_C; ++j) sums[i][j] = 0;
    Position p = position(begin, of_y);
    const int whole = room_c == TILE_C && room_f == TILE_C;
    for (uint number = begin; number < end; ++number, p = after(p, of_y)) {
        const ulong at_x = at(x, p.n, p.d * t.stride[0] + kd * t.dilation[0], p.h * t.stride[1] + kh * t.dilation[1],
                              p.w * t.stride[2] + kw * t.dilation[2], g * ch.inputs + c0);
        const ulong at_y = at_position(dy, p) + g * ch.outputs + f0;
        float a[TILE_W], b[TILE_C];
        if (whole) {
#pragma unroll
            for (int i = 0; i < TILE_W; ++i) a[i] = act(arena, at_x + i);
#pragma unroll
            for (int j = 0; j < TILE_C; ++j) b[j] = act(arena, at_y + j);
        } else {
            for (int i = 0; i < TILE_W; ++i) a[i] = i < (int)room_c ? act(arena, at_x + i) : 0;
            for (int j = 0; j < TILE_C; ++j) b[j] = j < (int)room_f ? act(arena, at_y + j) : 0;
        }
#pragma unroll
        for (int i = 0; i < TILE_W; ++i)
#pragma unroll
            for (int j = 0; j < TILE_C; ++j) sums[i][j] = fma(a[i], b[j], sums[i][j]);
    }
    const uint pitch = ch.outputs * ch.groups;
    const ulong elements = (ulong)taps * ch.inputs * pitch;
    for (int i = 0; i < (int)room_c; ++i)
        for (int j = 0; j < (int)room_f; ++j) {
            const ulong element = ((ulong)tap * ch.inputs + c0 + i) * pitch + g * ch.outputs + f0 + j;
            if (parts > 1) put_f32(arena, partial + part * elements + element, sums[i][j], 0);
            else put_f32(arena, dw + element, sums[i][j], accumulate);
        }
}

// Of one channel a group: each work-item computes one result.
__kernel void depthwise_forward(__global uchar *arena, View x, View y, Extent e, Taps t, ulong weights,
                                Epilogue last) {
    EACH_ELEMENT(e)
    float sum = 0;
    ulong weight = weights + c;
    for (int kd = 0; kd < t.count[0]; ++kd)
        for (int kh = 0; kh < t.count[1]; ++kh)
            for (int kw = 0; kw < t.count[2]; ++kw, weight += e.n[4]) {
                const ulong input = at(x, n, d * t.stride[0] + kd * t.dilation[0],
                                       h * t.stride[1] + kh * t.dilation[1], w * t.stride[2] + kw * t.dilation[2], c);
                sum = fma(act(arena, input), f32(arena, weight), sum);
            }
    put_result(arena, y, last, n, d, h, w, c, sum);
}

__kernel void depthwise_backward_data(__global uchar *arena, View dy, Extent of_y, View dx, Extent e, Taps t,
                                      ulong weights, Epilogue last) {
    EACH_ELEMENT(e)
    float sum = 0;
    ulong weight = weights + c;
    for (int kd = 0; kd < t.count[0]; ++kd)
        for (int kh = 0; kh < t.count[1]; ++kh)
            for (int kw = 0; kw < t.count[2]; ++kw, weight += e.n[4]) {
                const int od = (int)d + t.shift[0] - kd * t.dilation[0];
                const int oh = (int)h + t.shift[1] - kh * t.dilation[1];
                const int ow = (int)w + t.shift[2] - kw * t.dilation[2];
                if (od < 0 || od % t.stride[0] || od / t.stride[0] >= (int)of_y.n[1]) continue;
                if (oh < 0 || oh % t.stride[1] || oh / t.stride[1] >= (int)of_y.n[2]) continue;
                if (ow < 0 || ow % t.stride[2] || ow / t.stride[2] >= (int)of_y.n[3]) continue;
                const ulong output = at(dy, n, od / t.stride[0], oh / t.stride[1], ow / t.stride[2], c);
                sum = fma(act(arena, output), f32(arena, weight), sum);
            }
    put_result(arena, dx, last, n, d, h, w, c, sum);
}

// Of one part of the positions, tap by tap; the sums of a part are (tap, channel).
__kernel void depthwise_backward_weight(__global uchar *arena, View x, View dy, Extent of_y, Taps t, uint parts,
                                        uint stretch, ulong partial) {
    const uint taps = t.count[0] * t.count[1] * t.count[2], channels = of_y.n[4];
    EACH_ITEM(item, channels * taps * parts)
    const uint c = item % channels, tap = item / channels % taps, part = item / channels / taps;
    const uint kw = tap % t.count[2], kh = tap / t.count[2] % t.count[1], kd = tap / t.count[2] / t.count[1];
    const uint all = of_y.n[0] * sample_positions(of_y);
    const uint begin = part * stretch, end = min(begin + stretch, all);
    float sum = 0;
    Position p = position(begin, of_y);
    for (uint number = begin; number < end; ++number, p = after(p, of_y)) {
        const ulong input = at(x, p.n, p.d * t.stride[0] + kd * t.dilation[0], p.h * t.stride[1] + kh * t.dilation[1],
                               p.w * t.stride[2] + kw * t.dilation[2], c);
        sum = fma(act(arena, input), act(arena, at_position(dy, p) + c), sum);
    }
    put_f32(arena, partial + item, sum, 0);
}

// Sums of parts in f32, in their order, as activations (a box).
__kernel void add_parts(__global uchar *arena, ulong partial, uint parts, View y, Extent e, Epilogue last) {
    EACH_ELEMENT(e)
    const ulong all = (ulong)e.n[0] * sample_positions(e) * e.n[4];
    const ulong number = dense_number(e, n, d, h, w, c);
    float sum = 0;
    for (uint part = 0; part < parts; ++part) sum += f32(arena, partial + part * all + number);
    put_result(arena, y, last, n, d, h, w, c, sum);
}

// The same of so many weights.
__kernel void add_weight_parts(__global uchar *arena, ulong partial, uint parts, ulong dw, uint count, int accumulate) {
    EACH_ITEM(item, count)
    float sum = 0;
    for (uint part = 0; part < parts; ++part) sum += f32(arena, partial + (ulong)part * count + item);
    put_f32(arena, dw + item, sum, accumulate);
}
