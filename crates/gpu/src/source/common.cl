// What all kernels share: views of the arena, the walk over their elements, and reading and writing elements.
//
// Every kernel gets the memory of its rank as one pointer, and views as offsets and pitches in elements.
// ACT is the type of activations and their gradients; all other tensors are in f32, sums in f64.

#if defined(ACTIVATIONS_IN_BF16) || defined(ACTIVATIONS_IN_F16)
typedef ushort Act;
#else
typedef float Act;
#endif

// Where the elements of a tensor lie: element (n, d, h, w, c), whose c is contiguous.
typedef struct {
    ulong offset;
    ulong pitch[4];
} View;

// Extents of a box, and how many work-groups cover one row of its c.
typedef struct {
    uint n[5];
    uint segments;
} Extent;

inline ulong at(View v, uint n, uint d, uint h, uint w, uint c) {
    return v.offset + n * v.pitch[0] + d * v.pitch[1] + h * v.pitch[2] + w * v.pitch[3] + c;
}

// The element (n, d, h, w, c) of this work-item; a work-group lies in one row. Work-items beyond the row return.
#define EACH_ELEMENT(e)                                                                            \
    const uint c = (uint)get_group_id(0) % (e).segments * (uint)get_local_size(0) + (uint)get_local_id(0); \
    if (c >= (e).n[4]) return;                                                                     \
    uint row_ = (uint)get_group_id(0) / (e).segments;                                              \
    const uint w = row_ % (e).n[3];                                                                \
    row_ /= (e).n[3];                                                                              \
    const uint h = row_ % (e).n[2];                                                                \
    row_ /= (e).n[2];                                                                              \
    const uint d = row_ % (e).n[1];                                                                \
    const uint n = row_ / (e).n[1];

// The number of an element of a dense tensor.
inline ulong dense_number(Extent e, uint n, uint d, uint h, uint w, uint c) {
    return ((((ulong)n * e.n[1] + d) * e.n[2] + h) * e.n[3] + w) * e.n[4] + c;
}

// The number of this work-item; those from `count` on return.
#define EACH_ITEM(item, count)                    \
    const uint item = (uint)get_global_id(0);     \
    if (item >= (count)) return;

// A position (n, d, h, w), to be moved on in memory order.
typedef struct {
    uint n, d, h, w;
} Position;

inline Position position(uint number, Extent e) {
    Position p = {0, 0, 0, 0};
    // Also of an empty box.
    if (number == 0) return p;
    p.w = number % e.n[3];
    number /= e.n[3];
    p.h = number % e.n[2];
    number /= e.n[2];
    p.d = number % e.n[1];
    p.n = number / e.n[1];
    return p;
}

inline Position after(Position p, Extent e) {
    if (++p.w < e.n[3]) return p;
    p.w = 0;
    if (++p.h < e.n[2]) return p;
    p.h = 0;
    if (++p.d < e.n[1]) return p;
    p.d = 0;
    ++p.n;
    return p;
}

inline ulong at_position(View v, Position p) {
    return at(v, p.n, p.d, p.h, p.w, 0);
}

// Positions of one sample.
inline uint sample_positions(Extent e) {
    return e.n[1] * e.n[2] * e.n[3];
}

inline float bf16_value(ushort bits) {
    return as_float((uint)bits << 16);
}

// Rounds to nearest even; a NaN stays one.
inline ushort bf16_bits(float value) {
    const uint bits = as_uint(value);
    if (value != value) return (ushort)(bits >> 16 | 0x40);
    return (ushort)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float f16_value(__global const uchar *arena, ulong element) {
    return vload_half(element, (__global const half *)arena);
}

// Rounds to nearest even, beyond the largest to infinity.
inline void put_f16(__global uchar *arena, ulong element, float value) {
    vstore_half_rte(value, element, (__global half *)arena);
}

// Elements of activations.
inline float act(__global const uchar *arena, ulong element) {
#if defined(ACTIVATIONS_IN_BF16)
    return bf16_value(((__global const Act *)arena)[element]);
#elif defined(ACTIVATIONS_IN_F16)
    return f16_value(arena, element);
#else
    return ((__global const Act *)arena)[element];
#endif
}

inline void put_act(__global uchar *arena, ulong element, float value, int accumulate) {
    if (accumulate) value += act(arena, element);
#if defined(ACTIVATIONS_IN_BF16)
    ((__global Act *)arena)[element] = bf16_bits(value);
#elif defined(ACTIVATIONS_IN_F16)
    put_f16(arena, element, value);
#else
    ((__global Act *)arena)[element] = value;
#endif
}

// Elements in f32.
inline float f32(__global const uchar *arena, ulong element) {
    return ((__global const float *)arena)[element];
}

inline void put_f32(__global uchar *arena, ulong element, float value, int accumulate) {
    __global float *target = (__global float *)arena + element;
    *target = accumulate ? *target + value : value;
}

// What is done with a result before it is stored, in this order.
enum { WITH_BIAS = 1, ACCUMULATE = 2, WITH_SCALES = 4, WITH_ADDED = 8, WITH_SLOPE = 16, WITH_MASK = 32 };

typedef struct {
    // A box that is added, and one whose positive elements leave the result as it is.
    View added, mask;
    // By channel: what is added, and so many factors followed by as many offsets.
    ulong bias, scales;
    uint channels;
    // Factors of negative results, and of those whose element of the mask is not positive.
    float slope, mask_slope;
    int steps;
} Epilogue;

inline void put_result(__global uchar *arena, View y, Epilogue t, uint n, uint d, uint h, uint w, uint c,
                       float value) {
    const ulong element = at(y, n, d, h, w, c);
    if (t.steps & WITH_BIAS) value += f32(arena, t.bias + c);
    if (t.steps & ACCUMULATE) value += act(arena, element);
    if (t.steps & WITH_SCALES) value = fma(value, f32(arena, t.scales + c), f32(arena, t.scales + t.channels + c));
    if (t.steps & WITH_ADDED) value += act(arena, at(t.added, n, d, h, w, c));
    if (t.steps & WITH_SLOPE) value = value > 0 ? value : t.slope * value;
    if (t.steps & WITH_MASK) value *= act(arena, at(t.mask, n, d, h, w, c)) > 0 ? 1 : t.mask_slope;
    put_act(arena, element, value, 0);
}

// Elements in f64.
inline double f64(__global const uchar *arena, ulong element) {
    return ((__global const double *)arena)[element];
}

inline void put_f64(__global uchar *arena, ulong element, double value, int accumulate) {
    __global double *target = (__global double *)arena + element;
    *target = accumulate ? *target + value : value;
}

// Types of elements, as the host numbers them.
enum { F32 = 0, F64 = 1, BF16 = 2, I16 = 3, F16 = 4 };

inline double element(__global const uchar *arena, ulong number, int type) {
    switch (type) {
    case F32: return f32(arena, number);
    case F64: return f64(arena, number);
    case BF16: return bf16_value(((__global const ushort *)arena)[number]);
    case F16: return f16_value(arena, number);
    default: return ((__global const short *)arena)[number];
    }
}

inline void put_element(__global uchar *arena, ulong number, double value, int type, int accumulate) {
    switch (type) {
    case F32: put_f32(arena, number, (float)value, accumulate); break;
    case F64: put_f64(arena, number, value, accumulate); break;
    case BF16: {
        __global ushort *target = (__global ushort *)arena + number;
        const float sum = accumulate ? bf16_value(*target) + (float)value : (float)value;
        *target = bf16_bits(sum);
        break;
    }
    case F16: put_f16(arena, number, accumulate ? f16_value(arena, number) + (float)value : (float)value); break;
    default: {
        __global short *target = (__global short *)arena + number;
        *target = (short)((accumulate ? *target : 0) + value);
    }
    }
}
