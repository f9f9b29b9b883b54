/* The scan as a plain loop in C, as a reference for one pass over memory. complex64, a constant gate (P,).
   Rows are (re, im) interleaved; a thread processes whole samples. */
#include <stdlib.h>
#include <string.h>

/* x_k = a x_{k-1} + b_k from rest, over b (B, L, P). */
void forward(const float *restrict a, const float *restrict b, float *restrict x, long B, long L, long P) {
    #pragma omp parallel for
    for (long i = 0; i < B; i++) {
        float re[P], im[P];
        memset(re, 0, sizeof re), memset(im, 0, sizeof im);
        for (long k = 0; k < L; k++) {
            const float *in = b + (i * L + k) * 2 * P;
            float *out = x + (i * L + k) * 2 * P;
            for (long p = 0; p < P; p++) {
                float r = a[2 * p] * re[p] - a[2 * p + 1] * im[p] + in[2 * p];
                float m = a[2 * p] * im[p] + a[2 * p + 1] * re[p] + in[2 * p + 1];
                out[2 * p] = re[p] = r, out[2 * p + 1] = im[p] = m;
            }
        }
    }
}

/* G_k = g_k + conj(a) G_{k+1}, and da (B, P) += conj(x_{k-1}) G_k, in float over 64 steps and in double across them. */
void backward(const float *restrict a, const float *restrict x, const float *restrict g, float *restrict G,
              double *restrict da, long B, long L, long P) {
    #pragma omp parallel for
    for (long i = 0; i < B; i++) {
        float re[P], im[P], sum_re[P], sum_im[P];
        memset(re, 0, sizeof re), memset(im, 0, sizeof im);
        for (long end = L; end > 0; end -= 64) {
            memset(sum_re, 0, sizeof sum_re), memset(sum_im, 0, sizeof sum_im);
            for (long k = end - 1; k >= (end > 64 ? end - 64 : 0); k--) {
                const float *in = g + (i * L + k) * 2 * P, *before = x + (i * L + (k ? k - 1 : 0)) * 2 * P;
                float *out = G + (i * L + k) * 2 * P, counts = k > 0;
                for (long p = 0; p < P; p++) {
                    float r = a[2 * p] * re[p] + a[2 * p + 1] * im[p] + in[2 * p];
                    float m = a[2 * p] * im[p] - a[2 * p + 1] * re[p] + in[2 * p + 1];
                    out[2 * p] = re[p] = r, out[2 * p + 1] = im[p] = m;
                    sum_re[p] += counts * (before[2 * p] * r + before[2 * p + 1] * m);
                    sum_im[p] += counts * (before[2 * p] * m - before[2 * p + 1] * r);
                }
            }
            for (long p = 0; p < P; p++)
                da[(i * P + p) * 2] += sum_re[p], da[(i * P + p) * 2 + 1] += sum_im[p];
        }
    }
}
