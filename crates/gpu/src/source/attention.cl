// Attention of one sample, over all heads. Tables of the workspace are (head, position of q, position of k).

// Groups, a head within a window; channels of a head, positions of q and of k and their H and W, whether later positions
// are masked, the sample, and what scores are multiplied with. Then windows of a head, 0 if there are none, their extents,
// those of the tensor, the shift, and what is added across borders.
typedef struct {
    uint groups, channels, outer, inner;
    uint outer_extent[2], inner_extent[2];
    int causal;
    uint sample;
    float scale;
    uint windows;
    uint window[3], tensor[3], shift[3];
    float mask;
} Heads;

inline uint head_of(Heads t, uint group) {
    return t.windows ? group / t.windows : group;
}

// Index along a dim, after the shift, of a position of a window.
inline uint shifted(Heads t, uint group, uint position, int dim) {
    uint number = t.windows ? group % t.windows : 0;
    for (int other = 2; other >= dim; --other) {
        const uint count = t.tensor[other] / t.window[other];
        const uint at = number % count * t.window[other] + position % t.window[other];
        if (other == dim) return at;
        number /= count;
        position /= t.window[other];
    }
    return 0;
}

inline uint in_tensor(Heads t, uint group, uint position, int dim) {
    return (shifted(t, group, position, dim) + t.shift[dim]) % t.tensor[dim];
}

// Number of the part of the tensor.
inline uint part_of(Heads t, uint group, uint position) {
    uint number = 0;
    for (int dim = 0; dim < 3; ++dim) {
        const int wraps = t.shift[dim] && shifted(t, group, position, dim) + t.shift[dim] >= t.tensor[dim];
        number = 2 * number + (wraps ? 1 : 0);
    }
    return number;
}

// First channel of a head at a position of q, or of k.
inline ulong at_head(View v, Heads t, int is_inner, uint position, uint group) {
    const uint channel = head_of(t, group) * t.channels;
    if (t.windows)
        return at(v, t.sample, in_tensor(t, group, position, 0), in_tensor(t, group, position, 1),
                  in_tensor(t, group, position, 2), channel);
    const uint h = is_inner ? t.inner_extent[0] : t.outer_extent[0];
    const uint w = is_inner ? t.inner_extent[1] : t.outer_extent[1];
    return at(v, t.sample, position / (h * w), position / w % h, position % w, channel);
}

#define EACH_PAIR(t)                                          \
    EACH_ITEM(item, (t).groups * (t).outer * (t).inner)       \
    const uint j = item % (t).inner;                          \
    const uint i = item / (t).inner % (t).outer;              \
    const uint group = item / (t).inner / (t).outer;

// Products of rows of a and b over the channels, times `factor`; -infinity where masked.
__kernel void attention_products(__global uchar *arena, View a, View b, Heads t, float factor, int masks, ulong to) {
    EACH_PAIR(t)
    float sum = 0;
    const ulong of_a = at_head(a, t, 0, i, group), of_b = at_head(b, t, 1, j, group);
    for (uint c = 0; c < t.channels; ++c) sum += act(arena, of_a + c) * act(arena, of_b + c);
    put_f32(arena, to + item, masks && t.causal && j > i ? -INFINITY : factor * sum, 0);
}

// Each row becomes its softmax.
__kernel void attention_softmax(__global uchar *arena, Heads t, ulong rows) {
    EACH_ITEM(item, t.groups * t.outer)
    const ulong row = rows + (ulong)item * t.inner;
    float most = -INFINITY, total = 0;
    for (uint j = 0; j < t.inner; ++j) most = fmax(most, f32(arena, row + j));
    for (uint j = 0; j < t.inner; ++j) total += exp(f32(arena, row + j) - most);
    for (uint j = 0; j < t.inner; ++j) put_f32(arena, row + j, exp(f32(arena, row + j) - most) / total, 0);
}

// Gradients of shares become those of scores.
__kernel void attention_softmax_backward(__global uchar *arena, Heads t, ulong shares, ulong gradients) {
    EACH_ITEM(item, t.groups * t.outer)
    const ulong row = (ulong)item * t.inner;
    float mean = 0;
    for (uint j = 0; j < t.inner; ++j) mean += f32(arena, shares + row + j) * f32(arena, gradients + row + j);
    for (uint j = 0; j < t.inner; ++j) {
        const float centered = f32(arena, gradients + row + j) - mean;
        put_f32(arena, gradients + row + j, t.scale * f32(arena, shares + row + j) * centered, 0);
    }
}

// y[i] = sum over j of table[i, j] b[j], or with `transposed` y[j] = sum over i of table[i, j] b[i].
__kernel void attention_gather(__global uchar *arena, View b, View y, Heads t, ulong table, int transposed,
                               int accumulate) {
    const uint rows = transposed ? t.inner : t.outer, terms = transposed ? t.outer : t.inner;
    EACH_ITEM(item, t.groups * rows * t.channels)
    const uint c = item % t.channels, row = item / t.channels % rows, group = item / t.channels / rows;
    const ulong first = table + (ulong)group * t.outer * t.inner + (transposed ? row : (ulong)row * t.inner);
    const uint pitch = transposed ? t.inner : 1;
    float sum = 0;
    for (uint k = 0; k < terms; ++k)
        sum += f32(arena, first + (ulong)k * pitch) * act(arena, at_head(b, t, !transposed, k, group) + c);
    put_act(arena, at_head(y, t, transposed, row, group) + c, sum, accumulate);
}

// The extents of the window whose distances a bias has rows for, 0 if it has one for each pair.
typedef struct {
    uint n[3];
} Distances;

// Row of a bias for a position of q and one of k, numbered in the extents of the distances.
inline uint row_of(Distances t, uint inner, uint i, uint j) {
    if (!t.n[0]) return i * inner + j;
    uint row = 0, unit = t.n[1] * t.n[2];
    for (int dim = 0; dim < 3; ++dim) {
        const uint of_i = i / unit % t.n[dim], of_j = j / unit % t.n[dim];
        row = row * (2 * t.n[dim] - 1) + of_i + t.n[dim] - 1 - of_j;
        unit = dim < 2 ? unit / t.n[dim + 1] : 1;
    }
    return row;
}

// The position of k whose distance from one of q has a row; below 0 where there is none.
inline int key_of(Distances t, uint i, uint row) {
    const uint w = 2 * t.n[2] - 1, h = 2 * t.n[1] - 1;
    const int distance[3] = {(int)(row / w / h), (int)(row / w % h), (int)(row % w)};
    uint unit = t.n[1] * t.n[2];
    int key = 0;
    for (int dim = 0; dim < 3; ++dim) {
        const int at = (int)(i / unit % t.n[dim] + t.n[dim] - 1) - distance[dim];
        if (at < 0 || at >= (int)t.n[dim]) return -1;
        key = key * (int)t.n[dim] + at;
        unit = dim < 2 ? unit / t.n[dim + 1] : 1;
    }
    return key;
}

// Adds the bias and the mask of windows to scores.
__kernel void attention_add(__global uchar *arena, Heads t, View bias, int has_bias, Distances distances, ulong scores) {
    EACH_PAIR(t)
    float sum = 0;
    if (has_bias) sum = f32(arena, at(bias, 0, 0, 0, row_of(distances, t.inner, i, j), head_of(t, group)));
    if (t.windows && part_of(t, group, i) != part_of(t, group, j)) sum += t.mask;
    put_f32(arena, scores + item, sum, 1);
}

// Sums of the gradients of scores over the windows and pairs of each row.
__kernel void attention_bias_backward(__global uchar *arena, Heads t, View dbias, Extent table, Distances distances,
                                      ulong gradients, int accumulate) {
    EACH_ITEM(item, table.n[3] * table.n[4])
    const uint head = item % table.n[4], row = item / table.n[4];
    const uint windows = t.windows ? t.windows : 1;
    double sum = 0;
    for (uint i = distances.n[0] ? 0 : row / t.inner; i < (distances.n[0] ? t.outer : row / t.inner + 1); ++i) {
        const int j = distances.n[0] ? key_of(distances, i, row) : (int)(row % t.inner);
        if (j < 0 || j >= (int)t.inner) continue;
        for (uint w = 0; w < windows; ++w)
            sum += f32(arena, gradients + (((ulong)head * windows + w) * t.outer + i) * t.inner + j);
    }
    put_f32(arena, at(dbias, 0, 0, 0, row, head), (float)sum, accumulate);
}
