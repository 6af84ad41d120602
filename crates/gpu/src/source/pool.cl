// Poolings and resamplings. Each element of the result gathers what it is computed from.

// Taps of a window.
typedef struct {
    int count[3], stride[3], dilation[3];
    // Offset of the first input from the input under the first tap of the first output.
    int shift[3];
} Taps;

enum { MAX = 0, AVERAGE_ALL = 1, AVERAGE_INSIDE = 2, L2 = 3 };

// The first input under tap 0 of an output along a dim.
inline int input_of(Taps t, int dim, uint output) {
    return (int)output * t.stride[dim] - t.shift[dim];
}

// Taps [first, end) along a dim whose inputs lie inside.
inline int first_tap(Taps t, int dim, int input) {
    return input >= 0 ? 0 : (-input + t.dilation[dim] - 1) / t.dilation[dim];
}

inline int end_tap(Taps t, int dim, int input, uint extent) {
    const int room = (int)extent - input;
    return room <= 0 ? 0 : min(t.count[dim], (room + t.dilation[dim] - 1) / t.dilation[dim]);
}

// A window on the inputs of a channel.
typedef struct {
    // Inputs under tap 0; taps inside.
    int input[3], first[3], end[3];
} WindowAt;

inline WindowAt window_at(Taps t, uint d, uint h, uint w, Extent of_x) {
    const uint output[3] = {d, h, w};
    WindowAt window;
    for (int dim = 0; dim < 3; ++dim) {
        window.input[dim] = input_of(t, dim, output[dim]);
        window.first[dim] = first_tap(t, dim, window.input[dim]);
        window.end[dim] = end_tap(t, dim, window.input[dim], of_x.n[dim + 1]);
    }
    return window;
}

#define EACH_TAP(t, window)                                                                             \
    for (int kd = (window).first[0]; kd < (window).end[0]; ++kd)                                        \
        for (int kh = (window).first[1]; kh < (window).end[1]; ++kh)                                    \
            for (int kw = (window).first[2]; kw < (window).end[2]; ++kw)

inline ulong tap_at(View v, Taps t, WindowAt window, uint n, int kd, int kh, int kw, uint c) {
    return at(v, n, window.input[0] + kd * t.dilation[0], window.input[1] + kh * t.dilation[1],
              window.input[2] + kw * t.dilation[2], c);
}

// The first maximum; a NaN counts as the greatest.
inline int wins(float value, float most) {
    return value > most || (value != value && most == most);
}

__kernel void pool_forward(__global uchar *arena, View x, Extent of_x, View y, Extent e, Taps t, int kind,
                           Epilogue last) {
    EACH_ELEMENT(e)
    const WindowAt window = window_at(t, d, h, w, of_x);
    float value = 0;
    int count = 0;
    EACH_TAP(t, window) {
        const float input = act(arena, tap_at(x, t, window, n, kd, kh, kw, c));
        if (kind == MAX) value = count == 0 || wins(input, value) ? input : value;
        else value += kind == L2 ? input * input : input;
        ++count;
    }
    if (kind == AVERAGE_ALL) value /= t.count[0] * t.count[1] * t.count[2];
    if (kind == AVERAGE_INSIDE) value /= count;
    if (kind == L2) value = sqrt(value);
    put_result(arena, y, last, n, d, h, w, c, value);
}

inline uint tap_number(Taps t, int kd, int kh, int kw) {
    return (kd * t.count[1] + kh) * t.count[2] + kw;
}

// For each output what the gradients of its inputs need: the tap of the maximum, or the inverse of the norm. `e` is the
// box of the outputs, which are not read.
__kernel void pool_windows(__global uchar *arena, View x, Extent of_x, Extent e, Taps t, int kind, ulong windows) {
    EACH_ELEMENT(e)
    const WindowAt window = window_at(t, d, h, w, of_x);
    float value = 0;
    uint best = 0;
    int count = 0;
    EACH_TAP(t, window) {
        const float input = act(arena, tap_at(x, t, window, n, kd, kh, kw, c));
        if (kind == L2) {
            value += input * input;
        } else if (count == 0 || wins(input, value)) {
            value = input;
            best = tap_number(t, kd, kh, kw);
        }
        ++count;
    }
    const ulong number = windows + dense_number(e, n, d, h, w, c);
    if (kind == L2) put_f32(arena, number, value > 0 ? 1 / sqrt(value) : 0, 0);
    else ((__global uint *)arena)[number] = best;
}

// Inputs in the window of an output.
inline int inputs_in(WindowAt window) {
    return (window.end[0] - window.first[0]) * (window.end[1] - window.first[1]) * (window.end[2] - window.first[2]);
}

// `e` is the box of dx, which is that of x; `windows` are those of pool_windows.
__kernel void pool_backward(__global uchar *arena, View x, View dy, Extent of_y, View dx, Extent e, Taps t, int kind,
                            ulong windows, Epilogue last) {
    EACH_ELEMENT(e)
    float sum = 0;
    for (int kd = 0; kd < t.count[0]; ++kd) {
        const int od = (int)d + t.shift[0] - kd * t.dilation[0];
        if (od < 0 || od % t.stride[0] || od / t.stride[0] >= (int)of_y.n[1]) continue;
        for (int kh = 0; kh < t.count[1]; ++kh) {
            const int oh = (int)h + t.shift[1] - kh * t.dilation[1];
            if (oh < 0 || oh % t.stride[1] || oh / t.stride[1] >= (int)of_y.n[2]) continue;
            for (int kw = 0; kw < t.count[2]; ++kw) {
                const int ow = (int)w + t.shift[2] - kw * t.dilation[2];
                if (ow < 0 || ow % t.stride[2] || ow / t.stride[2] >= (int)of_y.n[3]) continue;
                const uint o[3] = {od / t.stride[0], oh / t.stride[1], ow / t.stride[2]};
                const float gradient = act(arena, at(dy, n, o[0], o[1], o[2], c));
                const ulong number = windows + dense_number(of_y, n, o[0], o[1], o[2], c);
                if (kind == MAX) {
                    const uint best = ((__global const uint *)arena)[number];
                    sum += best == tap_number(t, kd, kh, kw) ? gradient : 0;
                } else if (kind == L2) {
                    sum += gradient * f32(arena, number);
                } else if (kind == AVERAGE_INSIDE) {
                    sum += gradient / inputs_in(window_at(t, o[0], o[1], o[2], e));
                } else {
                    sum += gradient / (t.count[0] * t.count[1] * t.count[2]);
                }
            }
        }
    }
    if (kind == L2) sum *= act(arena, at(x, n, d, h, w, c));
    put_result(arena, dx, last, n, d, h, w, c, sum);
}

// For each dim a table: where the taps of an element begin, one number more than elements, and then for each tap where
// it reads. `weights` lie like the taps.
inline float resampled(__global const uchar *arena, View x, uint n, uint c, __global const uint *taps_d,
                       __global const float *weights_d, uint2 range_d, __global const uint *taps_h,
                       __global const float *weights_h, uint2 range_h, __global const uint *taps_w,
                       __global const float *weights_w, uint2 range_w) {
    float sum = 0;
    for (uint i = range_d.x; i < range_d.y; ++i)
        for (uint j = range_h.x; j < range_h.y; ++j) {
            float row = 0;
            for (uint k = range_w.x; k < range_w.y; ++k)
                row += weights_w[k] * act(arena, at(x, n, taps_d[i], taps_h[j], taps_w[k], c));
            sum += weights_d[i] * weights_h[j] * row;
        }
    return sum;
}

__kernel void resample(__global uchar *arena, View x, View y, Extent e, __global const uint *first_d,
                       __global const uint *taps_d, __global const float *weights_d, __global const uint *first_h,
                       __global const uint *taps_h, __global const float *weights_h, __global const uint *first_w,
                       __global const uint *taps_w, __global const float *weights_w, int accumulate) {
    EACH_ELEMENT(e)
    const uint2 range_d = (uint2)(first_d[d], first_d[d + 1]);
    const uint2 range_h = (uint2)(first_h[h], first_h[h + 1]);
    const uint2 range_w = (uint2)(first_w[w], first_w[w + 1]);
    const float value = resampled(arena, x, n, c, taps_d, weights_d, range_d, taps_h, weights_h, range_h, taps_w,
                                  weights_w, range_w);
    put_act(arena, at(y, n, d, h, w, c), value, accumulate);
}
