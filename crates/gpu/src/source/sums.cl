// Sums over positions by channel, and over all elements. Each is taken in parts, whose sums the workspace holds
// in f64, and then over the parts in their order: so the bits do not depend on what runs at once.
//
// Parts of channel sums are stretches of positions, of one sample each where samples are summed apart. The sums of
// a part lie row by row: (sample, part, row, channel).

// A part of the positions of one sample, or of all.
typedef struct {
    // Parts of a sample, or of all; positions of a part.
    uint parts, positions;
    // Samples that are summed apart; 1 if all are summed.
    uint apart;
} Parts;

// One channel of one part; the last part may be shorter.
#define EACH_PART(e, p)                                                   \
    EACH_ITEM(item, (p).apart * (p).parts * (e).n[4])                     \
    const uint c = item % (e).n[4];                                       \
    const uint part_ = item / (e).n[4];                                   \
    const uint n = part_ / (p).parts;                                     \
    const uint all_ = sample_positions(e) * ((p).apart == 1 ? (e).n[0] : 1); \
    const uint first_ = part_ % (p).parts * (p).positions;                \
    const uint count_ = first_ >= all_ ? 0 : min((p).positions, all_ - first_); \
    Position at_ = position(first_, e);                                   \
    if ((p).apart != 1) at_.n = n;

#define EACH_POSITION(e) for (uint i_ = 0; i_ < count_; ++i_, at_ = after(at_, e))

inline void put_part(__global uchar *arena, ulong partial, uint part, uint rows, uint row, Extent e, uint c,
                     double sum) {
    put_f64(arena, partial + ((ulong)part * rows + row) * e.n[4] + c, sum, 0);
}

// Sums over parts, of `count` sums of which so many parts lie one after the other.
__kernel void sum_parts(__global uchar *arena, ulong partial, uint parts, uint stride, uint first, View y, Extent e,
                        int type, double factor, int accumulate) {
    EACH_ELEMENT(e)
    // y is (samples, 1, 1, rows, C), or (1, 1, 1, 1, C).
    const ulong from = partial + (ulong)n * parts * stride + first + w * e.n[4] + c;
    double sum = 0;
    for (uint part = 0; part < parts; ++part) sum += f64(arena, from + (ulong)part * stride);
    put_element(arena, at(y, n, d, h, w, c), factor * sum, type, accumulate);
}

// Of x and of its square.
__kernel void moments(__global uchar *arena, View x, Extent e, Parts p, ulong partial) {
    EACH_PART(e, p)
    double sum = 0, squares = 0;
    EACH_POSITION(e) {
        const double value = act(arena, at_position(x, at_) + c);
        sum += value;
        squares += value * value;
    }
    put_part(arena, partial, part_, 2, 0, e, c, sum);
    put_part(arena, partial, part_, 2, 1, e, c, squares);
}

// Of dy and of dy times the normalized x, which is (x - mean) inverse; `scales` has mean and inverse of each channel,
// row by row, for each sample that is summed apart.
__kernel void gradient_moments(__global uchar *arena, View x, View dy, Extent e, Parts p, ulong scales, uint of_samples,
                               ulong partial) {
    EACH_PART(e, p)
    const ulong scale = scales + (of_samples ? (ulong)n * 2 * e.n[4] : 0) + c;
    const float mean = f32(arena, scale), inverse = f32(arena, scale + e.n[4]);
    double sum = 0, scaled = 0;
    EACH_POSITION(e) {
        const float gradient = act(arena, at_position(dy, at_) + c);
        sum += gradient;
        scaled += gradient * ((act(arena, at_position(x, at_) + c) - mean) * inverse);
    }
    put_part(arena, partial, part_, 2, 0, e, c, sum);
    put_part(arena, partial, part_, 2, 1, e, c, scaled);
}

__kernel void channel_sums(__global uchar *arena, View x, Extent e, Parts p, ulong partial) {
    EACH_PART(e, p)
    double sum = 0;
    EACH_POSITION(e) sum += act(arena, at_position(x, at_) + c);
    put_part(arena, partial, part_, 1, 0, e, c, sum);
}

__kernel void product_sums(__global uchar *arena, View a, View b, Extent e, Parts p, ulong partial) {
    EACH_PART(e, p)
    double sum = 0;
    EACH_POSITION(e) sum += (double)act(arena, at_position(a, at_) + c) * act(arena, at_position(b, at_) + c);
    put_part(arena, partial, part_, 1, 0, e, c, sum);
}

// Of x dy where not x > 0.
__kernel void slope_sums(__global uchar *arena, View x, View dy, Extent e, Parts p, ulong partial) {
    EACH_PART(e, p)
    double sum = 0;
    EACH_POSITION(e) {
        const float value = act(arena, at_position(x, at_) + c);
        if (!(value > 0)) sum += (double)value * act(arena, at_position(dy, at_) + c);
    }
    put_part(arena, partial, part_, 1, 0, e, c, sum);
}

// Of the absolute and the squared error.
__kernel void error_sums(__global uchar *arena, View x, View target, Extent e, Parts p, int type, int logistic,
                         ulong partial) {
    EACH_PART(e, p)
    double sum = 0, squares = 0;
    EACH_POSITION(e) {
        const double given = act(arena, at_position(x, at_) + c);
        const double error =
            (logistic ? 1 / (1 + exp(-given)) : given) - element(arena, at_position(target, at_) + c, type);
        sum += fabs(error);
        squares += error * error;
    }
    put_part(arena, partial, part_, 2, 0, e, c, sum);
    put_part(arena, partial, part_, 2, 1, e, c, squares);
}

// Of dy and of dy times the normalized x, where each position has sums of its own.
__kernel void row_gradient_moments(__global uchar *arena, View x, View sums, View dy, Extent e, Parts p, double count,
                                   double epsilon, ulong partial) {
    EACH_PART(e, p)
    double sum = 0, scaled = 0;
    EACH_POSITION(e) {
        const ulong row = at_position(sums, at_);
        const double mean = f64(arena, row) / count;
        const double variance = fmax(f64(arena, row + 1) / count - mean * mean, 0.0);
        const double gradient = act(arena, at_position(dy, at_) + c);
        sum += gradient;
        scaled += gradient * (act(arena, at_position(x, at_) + c) - mean) * rsqrt((float)(variance + epsilon));
    }
    put_part(arena, partial, part_, 2, 0, e, c, sum);
    put_part(arena, partial, part_, 2, 1, e, c, scaled);
}

// One number of so many sums; by one work-group.
__kernel void total(__global uchar *arena, ulong sums, uint count, ulong y, double factor, __local double *shared) {
    const uint own = get_local_id(0), size = get_local_size(0);
    double sum = 0;
    for (uint i = own; i < count; i += size) sum += f64(arena, sums + i);
    shared[own] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (own > 0) return;
    sum = 0;
    for (uint i = 0; i < size; ++i) sum += shared[i];
    put_f64(arena, y, factor * sum, 0);
}

// Adds the squares of every `items`-th element to the sums of so many work-items.
__kernel void squares(__global uchar *arena, View x, Extent e, uint elements, uint items, ulong partial) {
    EACH_ITEM(item, items)
    double sum = 0;
    for (uint i = item; i < elements; i += items) {
        const double value = f32(arena, at_position(x, position(i / e.n[4], e)) + i % e.n[4]);
        sum += value * value;
    }
    put_f64(arena, partial + item, sum, 1);
}
