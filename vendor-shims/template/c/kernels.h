/* The arithmetic of the example shim: one plain loop per operation, f32 throughout, no threads. */
#ifndef TEMPLATE_KERNELS_H
#define TEMPLATE_KERNELS_H

#include <stdint.h>

/* Highest rank this shim supports. */
#define MAX_RANK 6

/* A tensor while it runs. `data` is f32, i32 or bf16 by `dtype` (SW_DTYPE_…), dense row-major. */
typedef struct tensor {
    void *data;
    uint32_t dtype;
    uint32_t rank;
    uint64_t shape[MAX_RANK];
    uint64_t elements;
} tensor;

/* Numbers of a node, filled from its attributes when it is compiled. */
typedef struct parameters {
    double real[4];
    int64_t integer[8];
} parameters;

/* Meaning of the numbers. */
enum { RMS_WIDTH = 0, RMS_EPS = 0, RMS_OFFSET = 1 };
enum { ROPE_HEAD_DIM = 0, ROPE_ROTATED = 1, ROPE_THETA = 0, ROPE_FACTOR = 1 };
enum { ATT_HEADS = 0, ATT_KV_HEADS = 1, ATT_HEAD_DIM = 2, ATT_WINDOW = 3, ATT_SCALE = 0, ATT_SOFTCAP = 1 };
enum { SLICE_AXIS = 0, SLICE_START = 1, SLICE_END = 2 };
enum { SCALAR_VALUE = 0 };

float tensor_value(const tensor *t, uint64_t index);

void kernel_linear(const tensor *x, const tensor *weight, const tensor *bias, tensor *y);
void kernel_rms_norm(const tensor *x, const tensor *weight, const parameters *p, tensor *y);
void kernel_rope(const tensor *x, const tensor *positions, const parameters *p, tensor *y);
/* `scores` has room for one value per row of the state. */
void kernel_attention(const tensor *q, const tensor *k, const tensor *v, const tensor *positions, const parameters *p,
                      float *scores, tensor *y);
void kernel_state_update(tensor *state, const tensor *rows, const tensor *slots);
void kernel_gelu(const tensor *x, tensor *y);
void kernel_silu(const tensor *x, tensor *y);
void kernel_softcap(const tensor *x, const parameters *p, tensor *y);
void kernel_mul_scalar(const tensor *x, const parameters *p, tensor *y);
/* op: '+' or '*', with NumPy broadcasting. */
void kernel_binary(char op, const tensor *a, const tensor *b, tensor *y);
void kernel_slice(const tensor *x, const parameters *p, tensor *y);

#endif
