/* Plain single-threaded C loops: the compiled baselines of baselines.py. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* xoshiro256++ (Blackman and Vigna), seeded by splitmix64. */
typedef struct {
    uint64_t s[4];
} rng_t;

static inline uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static inline uint64_t next(rng_t *g) {
    uint64_t *s = g->s, out = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

static rng_t seeded(uint64_t seed) {
    rng_t g;
    for (int i = 0; i < 4; i++) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        g.s[i] = z ^ (z >> 31);
    }
    return g;
}

/* Uniform integer below n by a multiply and shift; the bias is below n / 2^64. */
static inline int64_t below(rng_t *g, int64_t n) {
    return (int64_t)(((unsigned __int128)next(g) * (uint64_t)n) >> 64);
}

/* Uniform on [-1, 1). */
static inline double symmetric(rng_t *g) { return (double)((int64_t)next(g) >> 11) * 0x1.0p-52; }

/* Standard normals by the Marsaglia polar method, in blocks: candidates in the unit disc are packed without a
 * branch, then transformed, two normals for each. What a block leaves over is dropped. */
#define PAIRS 64
static void normals(rng_t *state, double *out, int64_t count, double scale) {
    rng_t g = *state; /* a copy lives in registers */
    double u[PAIRS], v[PAIRS], s[PAIRS];
    while (count > 0) {
        int64_t pairs = (count + 1) / 2 < PAIRS ? (count + 1) / 2 : PAIRS;
        for (int64_t i = 0; i < pairs;) {
            u[i] = symmetric(&g);
            v[i] = symmetric(&g);
            s[i] = u[i] * u[i] + v[i] * v[i];
            i += (s[i] < 1.0) & (s[i] > 0.0);
        }
        for (int64_t i = 0; i < pairs; i++) s[i] = scale * sqrt(-2.0 * log(s[i]) / s[i]);
        int64_t both = count < 2 * pairs ? pairs - 1 : pairs;
        for (int64_t i = 0; i < both; i++) {
            out[2 * i] = u[i] * s[i];
            out[2 * i + 1] = v[i] * s[i];
        }
        if (both < pairs) out[2 * both] = u[both] * s[both];
        out += 2 * pairs;
        count -= 2 * pairs;
    }
    *state = g;
}

/* Four partial sums, so that the compiler may use vector instructions without -ffast-math. */
static inline double dot(const double *a, const double *b, int64_t d) {
    double s[4] = {0, 0, 0, 0}, tail = 0;
    int64_t j = 0;
    for (; j + 4 <= d; j += 4)
        for (int i = 0; i < 4; i++) s[i] += a[j + i] * b[j + i];
    for (; j < d; j++) tail += a[j] * b[j];
    return (s[0] + s[1]) + (s[2] + s[3]) + tail;
}

static inline void axpy(double *restrict y, double a, const double *restrict x, int64_t d) {
    for (int64_t j = 0; j < d; j++) y[j] += a * x[j];
}

/* One normal at a time, the other of its pair kept: the polar method as it stands in books. */
static double normal(rng_t *g, double *spare, int *kept) {
    if (*kept) {
        *kept = 0;
        return *spare;
    }
    double u, v, s;
    do {
        u = symmetric(g);
        v = symmetric(g);
        s = u * u + v * v;
    } while (s >= 1.0 || s == 0.0);
    s = sqrt(-2.0 * log(s) / s);
    *spare = v * s;
    *kept = 1;
    return u * s;
}

/* Federated LMS, fresh Gaussian samples each round, as one writes it down; w (d) holds the start and receives the end. */
int lab(const double *wk, int64_t agents, int64_t d, int64_t rounds, double step, double noise, uint64_t seed,
        double *w) {
    rng_t g = seeded(seed);
    double deviation = sqrt(noise), spare = 0;
    int kept = 0;
    double *h = malloc(2 * d * sizeof(double));
    if (!h) return 1;
    double *grad = h + d;
    for (int64_t t = 0; t < rounds; t++) {
        memset(grad, 0, d * sizeof(double));
        for (int64_t k = 0; k < agents; k++) {
            double r = -deviation * normal(&g, &spare, &kept);
            for (int64_t j = 0; j < d; j++) {
                h[j] = normal(&g, &spare, &kept);
                r += h[j] * (w[j] - wk[k * d + j]);
            }
            axpy(grad, r, h, d);
        }
        axpy(w, -step / agents, grad, d);
    }
    free(h);
    return 0;
}

/* The same, tuned: normals in blocks without branches, sums in four parts. */
int lab_tuned(const double *wk, int64_t agents, int64_t d, int64_t rounds, double step, double noise, uint64_t seed,
        double *w) {
    rng_t g = seeded(seed);
    double deviation = sqrt(noise);
    double *H = malloc((agents * (d + 1) + 2 * d) * sizeof(double));
    if (!H) return 1;
    double *v = H + agents * d, *grad = v + agents, *gap = grad + d;
    for (int64_t t = 0; t < rounds; t++) {
        normals(&g, H, agents * d, 1.0);
        normals(&g, v, agents, deviation);
        memset(grad, 0, d * sizeof(double));
        for (int64_t k = 0; k < agents; k++) {
            const double *h = H + k * d;
            for (int64_t j = 0; j < d; j++) gap[j] = w[j] - wk[k * d + j];
            double r = dot(h, gap, d) - v[k];
            axpy(grad, r, h, d);
        }
        axpy(w, -step / agents, grad, d);
    }
    free(H);
    return 0;
}

/* The same with stored rows: A (agents, rows, d), b (agents, rows), one random row an agent and round. */
int lab_stored(const double *A, const double *b, int64_t agents, int64_t rows, int64_t d, int64_t rounds, double step,
               uint64_t seed, double *w) {
    rng_t g = seeded(seed);
    double *grad = malloc(d * sizeof(double));
    if (!grad) return 1;
    for (int64_t t = 0; t < rounds; t++) {
        memset(grad, 0, d * sizeof(double));
        for (int64_t k = 0; k < agents; k++) {
            int64_t i = k * rows + below(&g, rows);
            const double *h = A + i * d;
            axpy(grad, dot(h, w, d) - b[i], h, d);
        }
        axpy(w, -step / agents, grad, d);
    }
    free(grad);
    return 0;
}

static inline void shuffle(rng_t *g, int64_t *a, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = below(g, i + 1), t = a[i];
        a[i] = a[j];
        a[j] = t;
    }
}

/* Four classes side by side (GCC and Clang vector type): a row of W is `vecs` of these, padded with zeros. */
typedef double vec __attribute__((vector_size(32)));

/* One minibatch step of softmax regression on the m rows listed in rows; p is scratch (m, vecs). */
__attribute__((always_inline)) static inline void softmax_step(const double *X, const int64_t *y, const int64_t *rows,
                                                               int64_t m, int64_t d, int64_t C, const int64_t vecs,
                                                               double step, vec *restrict W, vec *restrict p) {
    for (int64_t i = 0; i < m; i++) {
        const double *x = X + rows[i] * d;
        vec logits[vecs];
        for (int64_t c = 0; c < vecs; c++) logits[c] = (vec){0};
        for (int64_t j = 0; j < d; j++)
            for (int64_t c = 0; c < vecs; c++) logits[c] += x[j] * W[j * vecs + c];
        double *z = (double *)(p + i * vecs), top, sum = 0;
        memcpy(z, logits, vecs * sizeof(vec));
        top = z[0];
        for (int64_t c = 1; c < C; c++) top = z[c] > top ? z[c] : top;
        for (int64_t c = 0; c < C; c++) sum += z[c] = exp(z[c] - top);
        for (int64_t c = 0; c < C; c++) z[c] /= sum;
        z[y[rows[i]]] -= 1.0;
    }
    double rate = step / m;
    for (int64_t j = 0; j < d; j++) {
        vec sum[vecs];
        for (int64_t c = 0; c < vecs; c++) sum[c] = (vec){0};
        for (int64_t i = 0; i < m; i++)
            for (int64_t c = 0; c < vecs; c++) sum[c] += X[rows[i] * d + j] * p[i * vecs + c];
        for (int64_t c = 0; c < vecs; c++) W[j * vecs + c] -= rate * sum[c];
    }
}

/* Rows of agent k are first[k] .. first[k + 1] - 1; W (d, C) holds the start and receives the end. */
int softmax(const double *X, const int64_t *y, const int64_t *first, int64_t agents, int64_t d, int64_t C,
            int64_t rounds, int64_t participants, int64_t epochs, int64_t batch, double step, uint64_t seed,
            double *W) {
    rng_t g = seeded(seed);
    int64_t n = first[agents], vecs = (C + 3) / 4, size = d * vecs;
    vec *server = aligned_alloc(sizeof(vec), (3 * size + batch * vecs) * sizeof(vec));
    int64_t *ids = malloc((agents + n) * sizeof(int64_t));
    if (!server || !ids) {
        free(server);
        free(ids);
        return 1;
    }
    vec *local = server + size, *change = local + size, *p = change + size;
    int64_t *rows = ids + agents;
    memset(server, 0, (3 * size + batch * vecs) * sizeof(vec));
    for (int64_t j = 0; j < d; j++) memcpy(server + j * vecs, W + j * C, C * sizeof(double));
    for (int64_t k = 0; k < agents; k++) ids[k] = k;
    for (int64_t t = 0; t < rounds; t++) {
        memset(change, 0, size * sizeof(vec));
        for (int64_t l = 0; l < participants; l++) {
            /* partial shuffle: participants without replacement */
            int64_t pick = l + below(&g, agents - l), k = ids[pick];
            ids[pick] = ids[l];
            ids[l] = k;
            int64_t nk = first[k + 1] - first[k];
            for (int64_t i = 0; i < nk; i++) rows[i] = first[k] + i;
            memcpy(local, server, size * sizeof(vec));
            for (int64_t e = 0; e < epochs; e++) {
                shuffle(&g, rows, nk);
                for (int64_t s = 0; s < nk; s += batch) {
                    int64_t m = nk - s < batch ? nk - s : batch;
                    if (C == 10) /* constant sizes let the compiler unroll */
                        softmax_step(X, y, rows + s, m, d, 10, 3, step, local, p);
                    else
                        softmax_step(X, y, rows + s, m, d, C, vecs, step, local, p);
                }
            }
            double weight = (double)nk / n * agents / participants;
            for (int64_t j = 0; j < size; j++) change[j] += weight * (local[j] - server[j]);
        }
        for (int64_t j = 0; j < size; j++) server[j] += change[j];
    }
    for (int64_t j = 0; j < d; j++) memcpy(W + j * C, server + j * vecs, C * sizeof(double));
    free(server);
    free(ids);
    return 0;
}
