// Losses with their gradients, and counts of classes. Sums of losses are taken by so many work-items, each of every
// `items`-th element or position, and then over these in their order.

enum { SQUARED = 0, ABSOLUTE = 1, HUBER = 2, LOGISTIC_ENTROPY = 3 };

// Value and derivative by x. Of HUBER both are to be multiplied with `factor`.
inline double2 element_loss_of(int function, double delta, double factor, double x, double target) {
    const double error = x - target;
    const double sign = error > 0 ? 1 : error < 0 ? -1 : 0;
    switch (function) {
    case SQUARED: return (double2)(error * error, 2 * error);
    case ABSOLUTE: return (double2)(fabs(error), sign);
    case HUBER: {
        const int is_small = fabs(error) < delta;
        const double value = is_small ? error * error / 2 : delta * (fabs(error) - delta / 2);
        return (double2)(factor * value, factor * (is_small ? error : delta * sign));
    }
    default: {
        const float small = exp(-fabs((float)x));
        const float sigmoid_x = (x > 0 ? 1 : small) / (1 + small);
        return (double2)(fmax(x, 0.0) - x * target + log1p(small), sigmoid_x - target);
    }
    }
}

// `weights` has one number for each channel.
__kernel void element_loss(__global uchar *arena, View x, View target, View dx, Extent e, int type, int has_gradient,
                           int function, double delta, double huber, __global const double *weights, double factor,
                           uint items, ulong partial) {
    EACH_ITEM(item, items)
    const uint count = e.n[0] * sample_positions(e) * e.n[4];
    double sum = 0;
    for (uint i = item; i < count; i += items) {
        const Position p = position(i / e.n[4], e);
        const uint c = i % e.n[4];
        const double given = act(arena, at_position(x, p) + c);
        const double wanted = element(arena, at_position(target, p) + c, type);
        const double2 loss = element_loss_of(function, delta, huber, given, wanted);
        sum += weights[c] * loss.x;
        if (has_gradient) put_act(arena, at_position(dx, p) + c, (float)(factor * weights[c] * loss.y), 0);
    }
    put_f64(arena, partial + item, sum, 0);
}

// The logarithm of the sum of exp(x) over the classes of a position.
inline float log_total(__global const uchar *arena, ulong x, uint classes) {
    float most = -INFINITY, total = 0;
    for (uint c = 0; c < classes; ++c) most = fmax(most, act(arena, x + c));
    for (uint c = 0; c < classes; ++c) total += exp(act(arena, x + c) - most);
    return most + log(total);
}

inline int is_class(double number, uint classes) {
    return number >= 0 && number < classes && floor(number) == number;
}

__kernel void softmax_cross_entropy(__global uchar *arena, View x, View target, View dx, Extent e, int type,
                                    int has_gradient, double smoothing, double factor, uint items, ulong partial) {
    EACH_ITEM(item, items)
    const uint count = e.n[0] * sample_positions(e), classes = e.n[4];
    double sum = 0;
    for (uint i = item; i < count; i += items) {
        const Position p = position(i, e);
        const ulong from = at_position(x, p);
        const double wanted = element(arena, at_position(target, p), type);
        if (!is_class(wanted, classes)) continue;
        const float total = log_total(arena, from, classes);
        for (uint c = 0; c < classes; ++c) {
            const double expected = (c == (uint)wanted ? 1 - smoothing : 0) + smoothing / classes;
            const float value = act(arena, from + c);
            if (expected != 0) sum += expected * (total - value);
            if (has_gradient)
                put_act(arena, at_position(dx, p) + c, (float)(factor * (exp(value - total) - expected)), 0);
        }
    }
    put_f64(arena, partial + item, sum, 0);
}

// Whether a position counts, and its class.
inline int counts(double number, uint classes, int ignores, double ignore) {
    return !(ignores && number == ignore) && is_class(number, classes);
}

// `counters` has three rows of zeros: hits, given, wanted.
__kernel void class_counts(__global const uchar *arena, View x, View target, Extent e, int type, int ignores,
                           double ignore, __global uint *counters) {
    EACH_ITEM(item, e.n[0] * sample_positions(e))
    const Position p = position(item, e);
    const uint classes = e.n[4];
    const double wanted = element(arena, at_position(target, p), type);
    if (!counts(wanted, classes, ignores, ignore)) return;
    const ulong from = at_position(x, p);
    uint given = 0;
    for (uint c = 1; c < classes; ++c)
        if (act(arena, from + c) > act(arena, from + given)) given = c;
    if (given == (uint)wanted) atomic_inc(counters + given);
    atomic_inc(counters + classes + given);
    atomic_inc(counters + 2 * classes + (uint)wanted);
}

__kernel void class_totals(__global const uchar *arena, View target, Extent e, int type, uint classes, int ignores,
                           double ignore, __global uint *counters) {
    EACH_ITEM(item, e.n[0] * sample_positions(e))
    const double wanted = element(arena, at_position(target, position(item, e)), type);
    if (counts(wanted, classes, ignores, ignore)) atomic_inc(counters + (uint)wanted);
}

// Counters as a table (1, 1, 1, rows, C) in f64.
__kernel void put_counters(__global uchar *arena, __global const uint *counters, View y, Extent e) {
    EACH_ELEMENT(e)
    put_f64(arena, at(y, n, d, h, w, c), counters[w * e.n[4] + c], 0);
}

// Of one part of the positions: per class the sums of the softmax over the positions of the class, and over all, and
// the positions of the class. One work-item a part, which adds to its rows.
__kernel void dice_sums(__global uchar *arena, View x, View target, Extent e, int type, int ignores, double ignore,
                        uint parts, uint positions, uint apart, ulong partial) {
    EACH_ITEM(part, apart * parts)
    const uint classes = e.n[4], all = sample_positions(e) * (apart == 1 ? e.n[0] : 1);
    const uint first = part % parts * positions;
    const uint count = first >= all ? 0 : min(positions, all - first);
    const ulong rows = partial + (ulong)part * 3 * classes;
    for (uint i = 0; i < 3 * classes; ++i) put_f64(arena, rows + i, 0, 0);
    Position p = position(first, e);
    if (apart != 1) p.n = part / parts;
    for (uint i = 0; i < count; ++i, p = after(p, e)) {
        const double wanted = element(arena, at_position(target, p), type);
        if (!counts(wanted, classes, ignores, ignore)) continue;
        const ulong from = at_position(x, p);
        const float total = log_total(arena, from, classes);
        for (uint c = 0; c < classes; ++c) {
            const double share = exp(act(arena, from + c) - total);
            if (c == (uint)wanted) put_f64(arena, rows + c, share, 1);
            put_f64(arena, rows + classes + c, share, 1);
        }
        put_f64(arena, rows + 2 * classes + (uint)wanted, 1, 1);
    }
}

// For each row of sums (rows, 1, 1, 3, C): what Dice adds at each position, and for each class what it adds to the
// derivative by the softmax everywhere, and less at positions of the class.
__kernel void dice_factors(__global uchar *arena, View sums, uint rows, uint classes, uint first, double smooth,
                           double factor, double summed, __global const double *weights, ulong factors) {
    EACH_ITEM(row, rows)
    const ulong to = factors + (ulong)row * (1 + 2 * classes);
    double loss = 0;
    for (uint c = 0; c < classes; ++c) {
        double all = 0, own = 0;
        if (c >= first) {
            const double above = 2 * f64(arena, at(sums, row, 0, 0, 0, c)) + smooth;
            const double below =
                f64(arena, at(sums, row, 0, 0, 1, c)) + f64(arena, at(sums, row, 0, 0, 2, c)) + smooth;
            loss += weights[c] * (1 - above / below);
            all = factor * summed * weights[c] * above / (below * below);
            own = factor * summed * weights[c] * 2 / below;
        }
        put_f64(arena, to + 1 + 2 * c, all, 0);
        put_f64(arena, to + 2 + 2 * c, own, 0);
    }
    put_f64(arena, to, factor * loss, 0);
}

// What cross-entropy is multiplied with, from the positions of each class.
__kernel void entropy_factor(__global uchar *arena, View totals, uint classes, double factor,
                             __global const double *weights, ulong to) {
    EACH_ITEM(item, 1)
    double sum = 0;
    for (uint c = 0; c < classes; ++c) sum += weights[c] * f64(arena, at(totals, 0, 0, 0, 0, c));
    put_f64(arena, to, sum == 0 ? 0 : factor / sum, 0);
}

__kernel void class_loss(__global uchar *arena, View x, View target, View dx, Extent e, int type, int has_gradient,
                         int ignores, double ignore, double smoothing, __global const double *weights, ulong entropy_at,
                         ulong factors, uint rows, double weight, uint items, ulong partial) {
    EACH_ITEM(item, items)
    const uint count = e.n[0] * sample_positions(e), classes = e.n[4];
    const double entropy = f64(arena, entropy_at);
    double sum = 0;
    for (uint i = item; i < count; i += items) {
        const Position p = position(i, e);
        const ulong from = at_position(x, p), to = at_position(dx, p);
        const ulong row = factors + (ulong)min(p.n, rows - 1) * (1 + 2 * classes);
        if (rows > 0) sum += f64(arena, row);
        const double number = element(arena, at_position(target, p), type);
        if (!counts(number, classes, ignores, ignore)) {
            if (has_gradient)
                for (uint c = 0; c < classes; ++c) put_act(arena, to + c, 0, 0);
            continue;
        }
        const uint wanted = (uint)number;
        const float total = log_total(arena, from, classes);
        double expected_sum = 0, mean = 0;
        for (uint c = 0; c < classes; ++c) {
            const float value = act(arena, from + c);
            const double expected = entropy * weights[c] * ((c == wanted ? 1 - smoothing : 0) + smoothing / classes);
            expected_sum += expected;
            if (expected != 0) sum += expected * (total - value);
            if (rows == 0) continue;
            const double slope = f64(arena, row + 1 + 2 * c) - (c == wanted ? f64(arena, row + 2 + 2 * c) : 0);
            mean += slope * exp(value - total);
        }
        if (!has_gradient) continue;
        for (uint c = 0; c < classes; ++c) {
            const double share = exp(act(arena, from + c) - total);
            const double expected = entropy * weights[c] * ((c == wanted ? 1 - smoothing : 0) + smoothing / classes);
            double slope = expected_sum * share - expected;
            if (rows > 0) {
                const double own = f64(arena, row + 1 + 2 * c) - (c == wanted ? f64(arena, row + 2 + 2 * c) : 0);
                slope += share * (own - mean);
            }
            put_act(arena, to + c, (float)(weight * slope), 0);
        }
    }
    put_f64(arena, partial + item, sum, 0);
}
