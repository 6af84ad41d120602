// Functions of single elements.

__kernel void leaky_relu_forward(__global uchar *arena, View x, View y, Extent e, float slope) {
    EACH_ELEMENT(e)
    const float value = act(arena, at(x, n, d, h, w, c));
    put_act(arena, at(y, n, d, h, w, c), value > 0 ? value : slope * value, 0);
}

__kernel void leaky_relu_backward(__global uchar *arena, View y, View dy, View dx, Extent e, float slope,
                                  int accumulate) {
    EACH_ELEMENT(e)
    const float factor = act(arena, at(y, n, d, h, w, c)) > 0 ? 1 : slope;
    put_act(arena, at(dx, n, d, h, w, c), factor * act(arena, at(dy, n, d, h, w, c)), accumulate);
}

enum { GELU = 0, SILU = 1, SIGMOID = 2, TANH = 3, ELU = 4, GELU_TANH = 5, MISH = 6, SOFTPLUS = 7, HARDTANH = 8,
       HARD_SIGMOID = 9, HARD_SWISH = 10, AFFINE = 11, CLAMP = 12 };

inline float sigmoid(float x) {
    const float small = exp(-fabs(x));
    return (x > 0 ? 1 : small) / (1 + small);
}

inline float normal_below(float x) {
    return 0.5f * erfc(-0.70710678118654752f * x);
}

// Twice the argument of tanh in the approximation of GELU.
inline float bent(float x) {
    return 1.5957691216057308f * (x + 0.044715f * x * x * x);
}

inline float mish_gate(float x) {
    const float small = exp(-fabs(x));
    const float above = x > 0 ? 1 + 2 * small : small * (small + 2);
    return above / (above + (x > 0 ? 2 * small * small : 2));
}

inline float hard_sigmoid(float x) {
    return x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6;
}

inline float activation(int function, float alpha, float beta, float x) {
    switch (function) {
    case GELU: return x * normal_below(x);
    case SILU: return x * sigmoid(x);
    case SIGMOID: return sigmoid(x);
    case TANH: return tanh(x);
    case GELU_TANH: return x * sigmoid(bent(x));
    case MISH: return x * mish_gate(x);
    case SOFTPLUS: return alpha * x > 20 ? x : (fmax(alpha * x, 0.0f) + log1p(exp(-fabs(alpha * x)))) / alpha;
    case HARDTANH:
    case CLAMP: return x < alpha ? alpha : x > beta ? beta : x;
    case HARD_SIGMOID: return hard_sigmoid(x);
    case HARD_SWISH: return x * hard_sigmoid(x);
    case AFFINE: return alpha * x + beta;
    default: return x > 0 ? x : alpha * expm1(x);
    }
}

inline float slope_of(int function, float alpha, float beta, float x) {
    switch (function) {
    case GELU: return normal_below(x) + x * 0.39894228040143268f * exp(-0.5f * x * x);
    case SILU: return sigmoid(x) * (1 + x * sigmoid(-x));
    case SIGMOID: return sigmoid(x) * sigmoid(-x);
    case TANH: {
        const float value = tanh(x);
        return (1 - value) * (1 + value);
    }
    case GELU_TANH: {
        const float gate = sigmoid(bent(x));
        const float rest = sigmoid(-bent(x));
        const float bell = gate * rest;
        return gate + (bell > 0 ? x * bell * 1.5957691216057308f * (1 + 0.134145f * x * x) : 0);
    }
    case MISH: {
        const float gate = mish_gate(x);
        return gate + x * sigmoid(x) * (1 - gate) * (1 + gate);
    }
    case SOFTPLUS: return alpha * x > 20 ? 1 : sigmoid(alpha * x);
    case HARDTANH: return alpha < x && x < beta;
    case CLAMP: return alpha <= x && x <= beta;
    case HARD_SIGMOID: return -3 < x && x < 3 ? 1.0f / 6 : 0;
    case HARD_SWISH: return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5f;
    case AFFINE: return alpha;
    default: return x > 0 ? 1 : alpha * exp(x);
    }
}

__kernel void activation_forward(__global uchar *arena, View x, View y, Extent e, int function, float alpha,
                                 float beta) {
    EACH_ELEMENT(e)
    const float value = act(arena, at(x, n, d, h, w, c));
    put_act(arena, at(y, n, d, h, w, c), activation(function, alpha, beta, value), 0);
}

__kernel void activation_backward(__global uchar *arena, View x, View dy, View dx, Extent e, int function,
                                  float alpha, float beta, int accumulate) {
    EACH_ELEMENT(e)
    const float slope = slope_of(function, alpha, beta, act(arena, at(x, n, d, h, w, c)));
    put_act(arena, at(dx, n, d, h, w, c), slope * act(arena, at(dy, n, d, h, w, c)), accumulate);
}

__kernel void add(__global uchar *arena, View a, View b, View y, Extent e, Epilogue last) {
    EACH_ELEMENT(e)
    const float sum = act(arena, at(a, n, d, h, w, c)) + act(arena, at(b, n, d, h, w, c));
    put_result(arena, y, last, n, d, h, w, c, sum);
}

// Where b has one position or one channel, its pitches there are 0.
__kernel void multiply(__global uchar *arena, View a, View b, View y, Extent e, uint pitch_c, int accumulate) {
    EACH_ELEMENT(e)
    const float factor = act(arena, at(b, n, d, h, w, c * pitch_c));
    put_act(arena, at(y, n, d, h, w, c), factor * act(arena, at(a, n, d, h, w, c)), accumulate);
}

// `slopes` has one element, or one for each of so many channels.
__kernel void prelu_forward(__global uchar *arena, View x, View y, Extent e, ulong slopes, uint count) {
    EACH_ELEMENT(e)
    const float value = act(arena, at(x, n, d, h, w, c));
    const float factor = value > 0 ? 1 : f32(arena, slopes + c % count);
    put_act(arena, at(y, n, d, h, w, c), factor * value, 0);
}

__kernel void prelu_backward_data(__global uchar *arena, View x, View dy, View dx, Extent e, ulong slopes,
                                  uint count, int accumulate) {
    EACH_ELEMENT(e)
    const float factor = act(arena, at(x, n, d, h, w, c)) > 0 ? 1 : f32(arena, slopes + c % count);
    put_act(arena, at(dx, n, d, h, w, c), factor * act(arena, at(dy, n, d, h, w, c)), accumulate);
}

inline ulong scramble(ulong z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebUL;
    return z ^ z >> 31;
}

inline ulong absorb(ulong key, ulong word) {
    const ulong gamma = 0x9e3779b97f4a7c15UL;
    return scramble((key + gamma) ^ scramble(word + gamma));
}

// Of one sample. `shape` is that of the whole tensor, `corner` the global index of the first element.
__kernel void channel_shuffle(__global uchar *arena, View x, View y, Extent e, uint groups, int accumulate) {
    EACH_ELEMENT(e)
    const uint from = c % groups * (e.n[4] / groups) + c / groups;
    put_act(arena, at(y, n, d, h, w, c), act(arena, at(x, n, d, h, w, from)), accumulate);
}

// A mask of 1 is of channels, one of 2 of samples.
__kernel void dropout(__global uchar *arena, View x, View y, Extent e, Extent shape, Extent corner, ulong key, int mask,
                      ulong threshold, float scale, int accumulate) {
    EACH_ELEMENT(e)
    ulong element = corner.n[1] + d;
    element = element * shape.n[2] + corner.n[2] + h;
    element = element * shape.n[3] + corner.n[3] + w;
    element = (mask ? 0 : element * shape.n[4]) + corner.n[4] + c;
    element = mask == 2 ? 0 : element;
    const int kept = absorb(key, element) >> 11 >= threshold;
    const float value = kept ? scale * act(arena, at(x, n, d, h, w, c)) : 0;
    put_act(arena, at(y, n, d, h, w, c), value, accumulate);
}

__kernel void positions(__global uchar *arena, View x, View y, Extent e, Extent corner, uint channels) {
    EACH_ELEMENT(e)
    const uint channel = corner.n[4] + c;
    const uint pair = channel - channel % 2;
    const double angle = (corner.n[3] + w) / pow(10000.0, pair / (double)channels);
    const double value = channel == pair ? sin(angle) : cos(angle);
    put_act(arena, at(y, n, d, h, w, c), act(arena, at(x, n, d, h, w, c)) + (float)value, 0);
}

// Adds to each position the row of its number in the whole tensor, if there is one.
__kernel void position_embedding_forward(__global uchar *arena, View x, View table, View y, Extent e, Extent corner,
                                         Extent whole, uint rows) {
    EACH_ELEMENT(e)
    const uint plane = (corner.n[1] + d) * whole.n[2] + corner.n[2] + h;
    const uint row = plane * whole.n[3] + corner.n[3] + w;
    const float added = row < rows ? f32(arena, at(table, 0, 0, 0, row, c)) : 0;
    put_act(arena, at(y, n, d, h, w, c), act(arena, at(x, n, d, h, w, c)) + added, 0);
}

// Writes the number of the check and what is no class number to `invalid_class`.
__kernel void embedding_forward(__global uchar *arena, View x, View y, Extent e, View table, uint rows,
                                __global double *invalid_class, uint check) {
    EACH_ELEMENT(e)
    const float row = act(arena, at(x, n, d, h, w, 0));
    if (!(row >= 0 && row < rows && floor(row) == row)) {
        invalid_class[0] = check;
        invalid_class[1] = row;
        return;
    }
    put_act(arena, at(y, n, d, h, w, c), f32(arena, at(table, 0, 0, 0, (uint)row, c)), 0);
}
