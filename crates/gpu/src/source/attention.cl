// Attention of one sample, over all heads. Tables of the workspace are (head, position of q, position of k).

// Heads and channels of each, positions of q and of k and their H and W, whether later positions are masked, the sample,
// and what scores are multiplied with.
typedef struct {
    uint heads, channels, outer, inner;
    uint outer_extent[2], inner_extent[2];
    int causal;
    uint sample;
    float scale;
} Heads;

// First channel of a head at a position of q, or of k.
inline ulong at_head(View v, Heads t, int is_inner, uint position, uint head) {
    const uint h = is_inner ? t.inner_extent[0] : t.outer_extent[0];
    const uint w = is_inner ? t.inner_extent[1] : t.outer_extent[1];
    return at(v, t.sample, position / (h * w), position / w % h, position % w, head * t.channels);
}

#define EACH_PAIR(t)                                          \
    EACH_ITEM(item, (t).heads * (t).outer * (t).inner)        \
    const uint j = item % (t).inner;                          \
    const uint i = item / (t).inner % (t).outer;              \
    const uint head = item / (t).inner / (t).outer;

// Products of rows of a and b over the channels, times `factor`; -infinity where masked.
__kernel void attention_products(__global uchar *arena, View a, View b, Heads t, float factor, int masks, ulong to) {
    EACH_PAIR(t)
    float sum = 0;
    const ulong of_a = at_head(a, t, 0, i, head), of_b = at_head(b, t, 1, j, head);
    for (uint c = 0; c < t.channels; ++c) sum += act(arena, of_a + c) * act(arena, of_b + c);
    put_f32(arena, to + item, masks && t.causal && j > i ? -INFINITY : factor * sum, 0);
}

// Each row becomes its softmax.
__kernel void attention_softmax(__global uchar *arena, Heads t, ulong rows) {
    EACH_ITEM(item, t.heads * t.outer)
    const ulong row = rows + (ulong)item * t.inner;
    float most = -INFINITY, total = 0;
    for (uint j = 0; j < t.inner; ++j) most = fmax(most, f32(arena, row + j));
    for (uint j = 0; j < t.inner; ++j) total += exp(f32(arena, row + j) - most);
    for (uint j = 0; j < t.inner; ++j) put_f32(arena, row + j, exp(f32(arena, row + j) - most) / total, 0);
}

// Gradients of shares become those of scores.
__kernel void attention_softmax_backward(__global uchar *arena, Heads t, ulong shares, ulong gradients) {
    EACH_ITEM(item, t.heads * t.outer)
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
    EACH_ITEM(item, t.heads * rows * t.channels)
    const uint c = item % t.channels, row = item / t.channels % rows, head = item / t.channels / rows;
    const ulong first = table + (ulong)head * t.outer * t.inner + (transposed ? row : (ulong)row * t.inner);
    const uint pitch = transposed ? t.inner : 1;
    float sum = 0;
    for (uint k = 0; k < terms; ++k)
        sum += f32(arena, first + (ulong)k * pitch) * act(arena, at_head(b, t, !transposed, k, head) + c);
    put_act(arena, at_head(y, t, transposed, row, head) + c, sum, accumulate);
}
