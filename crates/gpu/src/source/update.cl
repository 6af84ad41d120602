// Optimizers and averages. All tensors of a parameter are in f32 and have one shape.

// What an update needs, in f64: see the host.
typedef struct {
    double rate, momentum, decay, beta1, beta2, root, epsilon, kept;
} Rule;

// Gradients are clipped to a norm, and scaled as a whole unless `scale` is 0.
typedef struct {
    ulong total;
    double maximum, scale;
    int clips;
} Clip;

// By how much gradients are multiplied: min(1, maximum / (norm + 1e-6)) / scale.
inline double clipped(__global const uchar *arena, Clip k) {
    if (!k.clips) return 1;
    const double scale = k.scale > 0 ? k.scale : 1;
    return fmin(k.maximum / (sqrt(f64(arena, k.total)) / scale + 1e-6), 1.0) / scale;
}

// Whether an update leaves everything as it is: scaled gradients are not finite.
inline int is_skipped(__global const uchar *arena, Clip k) {
    return k.clips && k.scale > 0 && !isfinite(f64(arena, k.total));
}

// Norms of LARS and LAMB: trust over what it is compared with; 1 where a norm is 0.
inline double trust_ratio(__global const uchar *arena, int rule, ulong norms, double trust, double decay, double epsilon) {
    const double parameter = sqrt(f64(arena, norms)), other = sqrt(f64(arena, norms + 1));
    if (parameter <= 0 || other <= 0) return 1;
    return rule == 0 ? trust * parameter / (other + decay * parameter + epsilon) : parameter / other;
}

__kernel void sgd(__global uchar *arena, View parameter, View gradient, View velocity, Extent e, Rule r, int has_velocity,
                  int nesterov, Clip k) {
    EACH_ELEMENT(e)
    if (is_skipped(arena, k)) return;
    const ulong at_p = at(parameter, n, d, h, w, c), at_v = at(velocity, n, d, h, w, c);
    const double p = f32(arena, at_p);
    double step = clipped(arena, k) * f32(arena, at(gradient, n, d, h, w, c)) + r.decay * p;
    if (has_velocity) {
        const double moved = step + r.momentum * f32(arena, at_v);
        put_f32(arena, at_v, (float)moved, 0);
        step = nesterov ? step + r.momentum * moved : moved;
    }
    put_f32(arena, at_p, (float)(p - r.rate * step), 0);
}

__kernel void adam(__global uchar *arena, View parameter, View gradient, View first, View second, Extent e, Rule r,
                   Clip k) {
    EACH_ELEMENT(e)
    if (is_skipped(arena, k)) return;
    const ulong at_p = at(parameter, n, d, h, w, c);
    const ulong at_m = at(first, n, d, h, w, c), at_v = at(second, n, d, h, w, c);
    const double p = f32(arena, at_p);
    const double scale = clipped(arena, k);
    const double g = scale * f32(arena, at(gradient, n, d, h, w, c)) + r.decay * p;
    const double m = r.beta1 * f32(arena, at_m) + (1 - r.beta1) * g;
    const double v = r.beta2 * f32(arena, at_v) + (1 - r.beta2) * g * g;
    put_f32(arena, at_m, (float)m, 0);
    put_f32(arena, at_v, (float)v, 0);
    put_f32(arena, at_p, (float)(r.kept * p - r.rate * m / (sqrt(v) / r.root + r.epsilon)), 0);
}

// The gradient becomes the direction of LAMB; `root` and `kept` correct the bias of the moments.
__kernel void lamb_direction(__global uchar *arena, View parameter, View gradient, View first, View second, Extent e,
                             Rule r, Clip k) {
    EACH_ELEMENT(e)
    const ulong at_g = at(gradient, n, d, h, w, c);
    const ulong at_m = at(first, n, d, h, w, c), at_v = at(second, n, d, h, w, c);
    if (is_skipped(arena, k)) {
        // Without a direction it does not move.
        put_f32(arena, at_g, 0, 0);
        return;
    }
    const double g = clipped(arena, k) * f32(arena, at_g);
    const double m = r.beta1 * f32(arena, at_m) + (1 - r.beta1) * g;
    const double v = r.beta2 * f32(arena, at_v) + (1 - r.beta2) * g * g;
    put_f32(arena, at_m, (float)m, 0);
    put_f32(arena, at_v, (float)v, 0);
    const double adam = m / r.kept / (sqrt(v / r.root) + r.epsilon);
    put_f32(arena, at_g, (float)(adam + r.decay * f32(arena, at(parameter, n, d, h, w, c))), 0);
}

__kernel void lars(__global uchar *arena, View parameter, View gradient, View velocity, Extent e, Rule r, int has_norms,
                   ulong norms, double trust, Clip k) {
    EACH_ELEMENT(e)
    if (is_skipped(arena, k)) return;
    const ulong at_p = at(parameter, n, d, h, w, c), at_v = at(velocity, n, d, h, w, c);
    const double p = f32(arena, at_p);
    const double g = clipped(arena, k) * f32(arena, at(gradient, n, d, h, w, c)) + r.decay * p;
    const double ratio = has_norms ? trust_ratio(arena, 0, norms, trust, r.decay, r.epsilon) : 1;
    const double step = r.momentum * f32(arena, at_v) + ratio * r.rate * g;
    put_f32(arena, at_v, (float)step, 0);
    put_f32(arena, at_p, (float)(p - step), 0);
}

// Along the direction of LAMB.
__kernel void lamb(__global uchar *arena, View parameter, View direction, Extent e, double rate, int has_norms,
                   ulong norms) {
    EACH_ELEMENT(e)
    const ulong at_p = at(parameter, n, d, h, w, c);
    const double ratio = has_norms ? trust_ratio(arena, 1, norms, 0, 0, 0) : 1;
    const double moved = ratio * rate * f32(arena, at(direction, n, d, h, w, c));
    put_f32(arena, at_p, (float)(f32(arena, at_p) - moved), 0);
}

// The average of a parameter, kept where the update is skipped.
__kernel void average(__global uchar *arena, View parameter, View average, Extent e, double moved, Clip k) {
    EACH_ELEMENT(e)
    if (is_skipped(arena, k)) return;
    const ulong at_a = at(average, n, d, h, w, c);
    const double before = f32(arena, at_a);
    put_f32(arena, at_a, (float)(before + moved * (f32(arena, at(parameter, n, d, h, w, c)) - before)), 0);
}

// The sum of squares of gradients that are to be clipped.
__kernel void clip_norm(__global uchar *arena, ulong norm, Clip k) {
    EACH_ITEM(item, 1)
    const double scale = clipped(arena, k);
    put_f64(arena, norm, scale * scale * f64(arena, norm), 0);
}
