#include "kernels.h"

#include <math.h>
#include <string.h>

#include "shim.h"

static float widen_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float tensor_value(const tensor *t, uint64_t index) {
    return t->dtype == SW_DTYPE_BF16 ? widen_bf16(((const uint16_t *)t->data)[index]) : ((const float *)t->data)[index];
}

void kernel_linear(const tensor *x, const tensor *weight, const tensor *bias, tensor *y) {
    const uint64_t out = weight->shape[0], in = weight->shape[1];
    const uint64_t rows = in == 0 ? 0 : x->elements / in;
    for (uint64_t row = 0; row < rows; row++) {
        const float *values = (const float *)x->data + row * in;
        float *results = (float *)y->data + row * out;
        for (uint64_t column = 0; column < out; column++) {
            float sum = 0;
            if (weight->dtype == SW_DTYPE_BF16) {
                const uint16_t *w = (const uint16_t *)weight->data + column * in;
                for (uint64_t k = 0; k < in; k++) sum += values[k] * widen_bf16(w[k]);
            } else {
                const float *w = (const float *)weight->data + column * in;
                for (uint64_t k = 0; k < in; k++) sum += values[k] * w[k];
            }
            results[column] = bias ? sum + tensor_value(bias, column) : sum;
        }
    }
}

void kernel_rms_norm(const tensor *x, const tensor *weight, const parameters *p, tensor *y) {
    const uint64_t width = (uint64_t)p->integer[RMS_WIDTH];
    const float offset = (float)p->real[RMS_OFFSET];
    for (uint64_t start = 0; start < x->elements; start += width) {
        const float *values = (const float *)x->data + start;
        float *results = (float *)y->data + start;
        float sum = 0;
        for (uint64_t i = 0; i < width; i++) sum += values[i] * values[i];
        const float inverse = 1.0f / sqrtf(sum / (float)width + (float)p->real[RMS_EPS]);
        for (uint64_t i = 0; i < width; i++) {
            results[i] = values[i] * inverse * (weight ? tensor_value(weight, i) + offset : 1.0f);
        }
    }
}

void kernel_rope(const tensor *x, const tensor *positions, const parameters *p, tensor *y) {
    const uint64_t head_dim = (uint64_t)p->integer[ROPE_HEAD_DIM], half = head_dim / 2;
    const uint64_t rotated = (uint64_t)p->integer[ROPE_ROTATED];
    const uint64_t width = x->shape[x->rank - 1], rows = width == 0 ? 0 : x->elements / width;
    memcpy(y->data, x->data, x->elements * sizeof(float));
    for (uint64_t row = 0; row < rows; row++) {
        const float position = (float)((const int32_t *)positions->data)[row];
        for (uint64_t pair = 0; pair < rotated; pair++) {
            const float exponent = -2.0f * (float)pair / (float)head_dim;
            const float angle =
                position * (powf((float)p->real[ROPE_THETA], exponent) / (float)p->real[ROPE_FACTOR]);
            const float cosine = cosf(angle), sine = sinf(angle);
            for (uint64_t head = 0; head < width / head_dim; head++) {
                const float *from = (const float *)x->data + row * width + head * head_dim;
                float *to = (float *)y->data + row * width + head * head_dim;
                to[pair] = from[pair] * cosine - from[pair + half] * sine;
                to[pair + half] = from[pair + half] * cosine + from[pair] * sine;
            }
        }
    }
}

/* The position stored in a slot, for a query at `position`: the last one at or before it that maps to the slot. */
static int64_t stored_position(int64_t position, int64_t slot, int64_t capacity) {
    int64_t behind = (position - slot) % capacity;
    if (behind < 0) behind += capacity;
    return position - behind;
}

void kernel_attention(const tensor *q, const tensor *k, const tensor *v, const tensor *positions, const parameters *p,
                      float *scores, tensor *y) {
    const uint64_t heads = (uint64_t)p->integer[ATT_HEADS], kv_heads = (uint64_t)p->integer[ATT_KV_HEADS];
    const uint64_t d = (uint64_t)p->integer[ATT_HEAD_DIM];
    const int64_t window = p->integer[ATT_WINDOW], capacity = (int64_t)k->shape[0];
    const float scale = (float)p->real[ATT_SCALE], cap = (float)p->real[ATT_SOFTCAP];
    const uint64_t rows = q->elements / (heads * d);
    for (uint64_t row = 0; row < rows; row++) {
        const int64_t position = ((const int32_t *)positions->data)[row];
        for (uint64_t head = 0; head < heads; head++) {
            const uint64_t kv = head / (heads / kv_heads);
            const float *query = (const float *)q->data + (row * heads + head) * d;
            float *result = (float *)y->data + (row * heads + head) * d;
            float largest = -INFINITY;
            for (int64_t slot = 0; slot < capacity; slot++) {
                const int64_t stored = stored_position(position, slot, capacity);
                if (stored < 0 || (window != 0 && stored <= position - window)) {
                    scores[slot] = -INFINITY;
                    continue;
                }
                const float *key = (const float *)k->data + ((uint64_t)slot * kv_heads + kv) * d;
                float score = 0;
                for (uint64_t i = 0; i < d; i++) score += query[i] * key[i];
                score *= scale;
                if (cap > 0) score = cap * tanhf(score / cap);
                scores[slot] = score;
                if (score > largest) largest = score;
            }
            float total = 0;
            memset(result, 0, d * sizeof(float));
            for (int64_t slot = 0; slot < capacity; slot++) {
                /* Invisible slots are skipped, not multiplied by zero: their content is undefined. */
                if (scores[slot] == -INFINITY) continue;
                const float weight = expf(scores[slot] - largest);
                const float *value = (const float *)v->data + ((uint64_t)slot * kv_heads + kv) * d;
                total += weight;
                for (uint64_t i = 0; i < d; i++) result[i] += weight * value[i];
            }
            if (total > 0) {
                for (uint64_t i = 0; i < d; i++) result[i] /= total;
            }
        }
    }
}

void kernel_state_update(tensor *state, const tensor *rows, const tensor *slots) {
    const uint64_t width = state->shape[1];
    for (uint64_t row = 0; row < slots->elements; row++) {
        const int32_t slot = ((const int32_t *)slots->data)[row];
        if (slot < 0 || (uint64_t)slot >= state->shape[0]) continue;
        memcpy((float *)state->data + (uint64_t)slot * width, (const float *)rows->data + row * width,
               width * sizeof(float));
    }
}

void kernel_gelu(const tensor *x, tensor *y) {
    for (uint64_t i = 0; i < x->elements; i++) {
        const float value = tensor_value(x, i);
        const float inner = 0.7978845608028654f * (value + 0.044715f * value * value * value);
        ((float *)y->data)[i] = 0.5f * value * (1.0f + tanhf(inner));
    }
}

void kernel_silu(const tensor *x, tensor *y) {
    for (uint64_t i = 0; i < x->elements; i++) {
        const float value = tensor_value(x, i);
        ((float *)y->data)[i] = value / (1.0f + expf(-value));
    }
}

void kernel_softcap(const tensor *x, const parameters *p, tensor *y) {
    const float cap = (float)p->real[SCALAR_VALUE];
    for (uint64_t i = 0; i < x->elements; i++) ((float *)y->data)[i] = cap * tanhf(tensor_value(x, i) / cap);
}

void kernel_mul_scalar(const tensor *x, const parameters *p, tensor *y) {
    const float value = (float)p->real[SCALAR_VALUE];
    for (uint64_t i = 0; i < x->elements; i++) ((float *)y->data)[i] = tensor_value(x, i) * value;
}

/* Elements to step over in `t` when axis `axis` of the result advances; 0 where `t` is broadcast. */
static uint64_t broadcast_stride(const tensor *t, uint32_t result_rank, uint32_t axis) {
    const uint32_t missing = result_rank - t->rank;
    if (axis < missing || t->shape[axis - missing] == 1) return 0;
    uint64_t stride = 1;
    for (uint32_t inner = axis - missing + 1; inner < t->rank; inner++) stride *= t->shape[inner];
    return stride;
}

void kernel_binary(char op, const tensor *a, const tensor *b, tensor *y) {
    uint64_t stride_a[MAX_RANK], stride_b[MAX_RANK], index[MAX_RANK] = {0};
    for (uint32_t axis = 0; axis < y->rank; axis++) {
        stride_a[axis] = broadcast_stride(a, y->rank, axis);
        stride_b[axis] = broadcast_stride(b, y->rank, axis);
    }
    for (uint64_t i = 0; i < y->elements; i++) {
        uint64_t at_a = 0, at_b = 0;
        for (uint32_t axis = 0; axis < y->rank; axis++) {
            at_a += index[axis] * stride_a[axis];
            at_b += index[axis] * stride_b[axis];
        }
        const float left = tensor_value(a, at_a), right = tensor_value(b, at_b);
        ((float *)y->data)[i] = op == '+' ? left + right : left * right;
        for (uint32_t axis = y->rank; axis-- > 0;) {
            if (++index[axis] < y->shape[axis]) break;
            index[axis] = 0;
        }
    }
}

void kernel_slice(const tensor *x, const parameters *p, tensor *y) {
    const uint32_t axis = (uint32_t)p->integer[SLICE_AXIS];
    const uint64_t start = (uint64_t)p->integer[SLICE_START];
    uint64_t outer = 1, inner = 1;
    for (uint32_t i = 0; i < axis; i++) outer *= x->shape[i];
    for (uint32_t i = axis + 1; i < x->rank; i++) inner *= x->shape[i];
    const uint64_t from = x->shape[axis] * inner, to = y->shape[axis] * inner;
    for (uint64_t i = 0; i < outer; i++) {
        for (uint64_t j = 0; j < to; j++) ((float *)y->data)[i * to + j] = tensor_value(x, i * from + start * inner + j);
    }
}
