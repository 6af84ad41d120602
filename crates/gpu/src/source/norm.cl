// Normalizations by channel: of a batch, or of groups of channels of each sample.

// Mean and inverse deviation of each channel from sums (1, 1, 1, 2, C) over `count` elements.
__kernel void batch_scales(__global uchar *arena, View sums, uint channels, double count, double epsilon,
                           ulong scales) {
    EACH_ITEM(c, channels)
    const double mean = f64(arena, at(sums, 0, 0, 0, 0, c)) / count;
    const double variance = fmax(f64(arena, at(sums, 0, 0, 0, 1, c)) / count - mean * mean, 0.0);
    put_f32(arena, scales + c, (float)mean, 0);
    put_f32(arena, scales + channels + c, (float)(1 / sqrt(variance + epsilon)), 0);
}

// The same from running statistics.
__kernel void running_scales(__global uchar *arena, ulong mean, ulong variance, uint channels, double epsilon,
                             ulong scales) {
    EACH_ITEM(c, channels)
    put_f32(arena, scales + c, f32(arena, mean + c), 0);
    put_f32(arena, scales + channels + c, (float)(1 / sqrt(f32(arena, variance + c) + epsilon)), 0);
}

// Factors and offsets by channel that do what running statistics, gamma and beta say.
__kernel void running_factors(__global uchar *arena, ulong mean, ulong variance, ulong gamma, ulong beta,
                              uint channels, double epsilon, ulong factors) {
    EACH_ITEM(c, channels)
    const double factor = f32(arena, gamma + c) / sqrt(f32(arena, variance + c) + epsilon);
    put_f32(arena, factors + c, (float)factor, 0);
    put_f32(arena, factors + channels + c, (float)(f32(arena, beta + c) - f32(arena, mean + c) * factor), 0);
}

// Factors by channel of gradients where running statistics normalized.
__kernel void gradient_factors(__global uchar *arena, ulong variance, ulong gamma, uint channels, double epsilon,
                               ulong factors) {
    EACH_ITEM(c, channels)
    put_f32(arena, factors + c, (float)(f32(arena, gamma + c) / sqrt(f32(arena, variance + c) + epsilon)), 0);
}

// The same of groups of so many channels of each sample, from sums (N, 1, 1, 2, C).
__kernel void group_scales(__global uchar *arena, View sums, uint samples, uint channels, uint size, double count,
                           double epsilon, ulong scales) {
    EACH_ITEM(item, samples * channels)
    const uint n = item / channels, c = item % channels, first = c / size * size;
    double sum = 0, squares = 0;
    for (uint i = first; i < first + size; ++i) {
        sum += f64(arena, at(sums, n, 0, 0, 0, i));
        squares += f64(arena, at(sums, n, 0, 0, 1, i));
    }
    const double mean = sum / count;
    const double variance = fmax(squares / count - mean * mean, 0.0);
    put_f32(arena, scales + (ulong)n * 2 * channels + c, (float)mean, 0);
    put_f32(arena, scales + (ulong)n * 2 * channels + channels + c, (float)(1 / sqrt(variance + epsilon)), 0);
}

// Where the scales of a channel are: the same for all samples, or of each.
inline ulong scale_of(ulong scales, uint of_samples, uint n, uint channels, uint c) {
    return scales + (of_samples ? (ulong)n * 2 * channels : 0) + c;
}

// The epilogue has no numbers by channel.
__kernel void normalize_forward(__global uchar *arena, View x, View y, Extent e, ulong scales, uint of_samples,
                                uint channels, ulong gamma, ulong beta, Epilogue last) {
    EACH_ELEMENT(e)
    const uint channel = c % channels;
    const ulong scale = scale_of(scales, of_samples, n, channels, channel);
    const float centered = act(arena, at(x, n, d, h, w, c)) - f32(arena, scale);
    const float factor = f32(arena, scale + channels) * f32(arena, gamma + channel);
    put_result(arena, y, last, n, d, h, w, c, centered * factor + f32(arena, beta + channel));
}

// Means of dy and of dy times the normalized x, from sums over `count` elements.
__kernel void batch_gradient_means(__global uchar *arena, View sums, uint channels, double count, ulong gamma,
                                   ulong means) {
    EACH_ITEM(c, channels)
    const double factor = f32(arena, gamma + c) / count;
    put_f32(arena, means + c, (float)(factor * f64(arena, at(sums, 0, 0, 0, 0, c))), 0);
    put_f32(arena, means + channels + c, (float)(factor * f64(arena, at(sums, 0, 0, 0, 1, c))), 0);
}

// The same over the group of a channel of a sample.
__kernel void group_gradient_means(__global uchar *arena, View sums, uint samples, uint channels, uint size,
                                   double count, ulong gamma, ulong means) {
    EACH_ITEM(item, samples * channels)
    const uint n = item / channels, c = item % channels, first = c / size * size;
    double sum = 0, scaled = 0;
    for (uint i = first; i < first + size; ++i) {
        sum += f32(arena, gamma + i) * f64(arena, at(sums, n, 0, 0, 0, i));
        scaled += f32(arena, gamma + i) * f64(arena, at(sums, n, 0, 0, 1, i));
    }
    put_f32(arena, means + (ulong)n * 2 * channels + c, (float)(sum / count), 0);
    put_f32(arena, means + (ulong)n * 2 * channels + channels + c, (float)(scaled / count), 0);
}

// dx = inverse (gamma dy - mean(gamma dy) - normalized x mean(gamma dy normalized x))
__kernel void normalize_backward(__global uchar *arena, View x, View dy, View dx, Extent e, ulong scales, ulong means,
                                 uint of_samples, uint channels, ulong gamma, int accumulate) {
    EACH_ELEMENT(e)
    const uint channel = c % channels;
    const ulong scale = scale_of(scales, of_samples, n, channels, channel);
    const ulong mean = scale_of(means, of_samples, n, channels, channel);
    const float inverse = f32(arena, scale + channels);
    const float normalized = (act(arena, at(x, n, d, h, w, c)) - f32(arena, scale)) * inverse;
    const float gradient = f32(arena, gamma + channel) * act(arena, at(dy, n, d, h, w, c));
    const float value = gradient - f32(arena, mean) - normalized * f32(arena, mean + channels);
    put_act(arena, at(dx, n, d, h, w, c), inverse * value, accumulate);
}

__kernel void scale_channels(__global uchar *arena, View x, View y, Extent e, ulong factors, uint channels,
                             int accumulate) {
    EACH_ELEMENT(e)
    const float value = f32(arena, factors + c % channels) * act(arena, at(x, n, d, h, w, c));
    put_act(arena, at(y, n, d, h, w, c), value, accumulate);
}

__kernel void running_statistics(__global uchar *arena, View sums, ulong mean, ulong variance, uint channels,
                                 double count, double unbiased, double momentum) {
    EACH_ITEM(c, channels)
    const double moved = f64(arena, at(sums, 0, 0, 0, 0, c)) / count;
    const double spread = fmax(f64(arena, at(sums, 0, 0, 0, 1, c)) / count - moved * moved, 0.0);
    put_f32(arena, mean + c, (float)((1 - momentum) * f32(arena, mean + c) + momentum * moved), 0);
    const double kept = (1 - momentum) * f32(arena, variance + c);
    put_f32(arena, variance + c, (float)(kept + momentum * spread * unbiased), 0);
}

// A row of sums (1, 1, 1, 2, C) as a vector.
__kernel void sums_row(__global uchar *arena, View sums, uint row, uint channels, ulong y, int accumulate) {
    EACH_ITEM(c, channels)
    put_f32(arena, y + c, (float)f64(arena, at(sums, 0, 0, 0, row, c)), accumulate);
}
