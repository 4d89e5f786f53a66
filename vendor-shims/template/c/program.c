/* From a work order to a flat program, and from its mapping back to something that runs.
 *
 * An artefact is a header, the program as a stream of u64 words (strings padded to whole words), and the weights, each
 * starting on a multiple of 64 bytes. It is read back with every length checked: a damaged file is an error, never a crash.
 */
#define _POSIX_C_SOURCE 200809L
#include "program.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t MAGIC = 0x31304c504d545753u; /* "SWTMPL01" */
static const uint64_t WEIGHT_ALIGNMENT = 64;

/* Bytes a tensor may have: far beyond this machine, far below overflow. */
static const uint64_t BYTES_LIMIT = (uint64_t)1 << 40;

static uint64_t element_bytes(uint32_t dtype) {
    switch (dtype) {
        case SW_DTYPE_F32:
        case SW_DTYPE_I32: return 4;
        case SW_DTYPE_BF16: return 2;
        default: return 0;
    }
}

/* ---- Judging ------------------------------------------------------------------------------------------------------------ */

static const sw_attribute *attribute(const sw_node *n, const char *name) {
    for (uint64_t i = 0; i < n->attribute_count; i++) {
        if (strcmp(n->attributes[i]->name, name) == 0) return n->attributes[i];
    }
    return NULL;
}

static int64_t integer(const sw_node *n, const char *name) {
    const sw_attribute *found = attribute(n, name);
    return found && found->kind == SW_ATTRIBUTE_INTEGER ? found->integer : -1;
}

static double real(const sw_node *n, const char *name) {
    const sw_attribute *found = attribute(n, name);
    return found && found->kind == SW_ATTRIBUTE_FLOAT ? found->number : 0;
}

static const sw_tensor *operand(const sw_entry *e, const sw_node *n, uint64_t place) {
    return place < n->input_count && n->inputs[place] != SW_NO_TENSOR ? e->tensors[n->inputs[place]] : NULL;
}

static int is_constant(const sw_entry *e, uint32_t index) {
    for (uint64_t i = 0; i < e->constant_count; i++) {
        if (e->constants[i]->tensor == index) return 1;
    }
    return 0;
}

static int is_state(const sw_entry *e, uint32_t index) {
    for (uint64_t i = 0; i < e->input_count; i++) {
        if (e->inputs[i]->tensor == index) return e->inputs[i]->role == SW_ROLE_STATE;
    }
    return 0;
}

const char *refusal(const sw_entry *e, const sw_node *n, char *reason, uint64_t room) {
    if (n->op_version != 1) {
        snprintf(reason, room, "version %u of the operation is newer than this shim", n->op_version);
        return reason;
    }
    if (n->input_count > 4 || n->output_count != 1) return "this shim supports up to four inputs and one output";
    for (uint64_t i = 0; i < n->input_count + 1; i++) {
        const sw_tensor *t = i < n->input_count ? operand(e, n, i) : e->tensors[n->outputs[0]];
        if (!t) continue;
        if (t->quantisation) return "this shim does not support quantised tensors";
        if (t->rank > MAX_RANK) {
            snprintf(reason, room, "rank %u, this shim supports up to %d", t->rank, MAX_RANK);
            return reason;
        }
        const int constant = i < n->input_count && is_constant(e, n->inputs[i]);
        if (t->dtype == SW_DTYPE_BF16 && constant) continue;
        if (t->dtype == SW_DTYPE_I32 && !constant && i < n->input_count) continue;
        if (t->dtype != SW_DTYPE_F32) {
            snprintf(reason, room, "element type %u of `%.60s`; this shim supports f32, bf16 weights and i32 step inputs",
                     t->dtype, t->name);
            return reason;
        }
    }
    switch (n->op) {
        case SW_OP_LINEAR:
            return operand(e, n, 1) && is_constant(e, n->inputs[1]) ? NULL : "the second operand must be a weight";
        case SW_OP_RMS_NORM:
        case SW_OP_ROPE:
        case SW_OP_GELU:
        case SW_OP_SILU:
        case SW_OP_SOFTCAP:
        case SW_OP_ADD:
        case SW_OP_MUL:
        case SW_OP_MUL_SCALAR:
        case SW_OP_RESHAPE:
        case SW_OP_SLICE: return NULL;
        case SW_OP_ATTENTION: {
            const sw_attribute *keys = attribute(n, "keys");
            if (!keys || keys->kind != SW_ATTRIBUTE_TEXT || strcmp(keys->text, "state") != 0) {
                return "this shim only supports attention over states";
            }
            return NULL;
        }
        case SW_OP_STATE_UPDATE:
            return is_state(e, n->inputs[0]) ? NULL : "only a state that is an input of the entry can be updated";
        default:
            snprintf(reason, room, "this shim does not support operation %u", n->op);
            return reason;
    }
}

/* ---- Compiling ---------------------------------------------------------------------------------------------------------- */

/* Words that grow; `failed` once memory ran out. */
typedef struct words {
    uint64_t *data;
    uint64_t count, room;
    int failed;
} words;

static void put(words *w, uint64_t value) {
    if (w->failed) return;
    if (w->count == w->room) {
        const uint64_t room = w->room ? w->room * 2 : 1024;
        uint64_t *grown = realloc(w->data, room * sizeof *grown);
        if (!grown) {
            w->failed = 1;
            return;
        }
        w->data = grown;
        w->room = room;
    }
    w->data[w->count++] = value;
}

static void put_text(words *w, const char *text) {
    const uint64_t length = strlen(text);
    put(w, length);
    for (uint64_t at = 0; at < length; at += 8) {
        uint64_t word = 0;
        memcpy(&word, text + at, length - at < 8 ? length - at : 8);
        put(w, word);
    }
}

static void put_real(words *w, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(w, bits);
}

static parameters numbers(const sw_node *n) {
    parameters p = {{0}, {0}};
    switch (n->op) {
        case SW_OP_RMS_NORM:
            p.integer[RMS_WIDTH] = integer(n, "width");
            p.real[RMS_EPS] = real(n, "eps");
            p.real[RMS_OFFSET] = real(n, "weight_offset");
            break;
        case SW_OP_ROPE:
            p.integer[ROPE_HEAD_DIM] = integer(n, "head_dim");
            p.integer[ROPE_ROTATED] = integer(n, "rotated_pairs");
            p.real[ROPE_THETA] = real(n, "theta");
            p.real[ROPE_FACTOR] = real(n, "factor");
            break;
        case SW_OP_ATTENTION:
            p.integer[ATT_HEADS] = integer(n, "heads");
            p.integer[ATT_KV_HEADS] = integer(n, "kv_heads");
            p.integer[ATT_HEAD_DIM] = integer(n, "head_dim");
            p.integer[ATT_WINDOW] = integer(n, "window");
            p.real[ATT_SCALE] = real(n, "scale");
            p.real[ATT_SOFTCAP] = real(n, "softcap");
            break;
        case SW_OP_SLICE:
            p.integer[SLICE_AXIS] = integer(n, "axis");
            p.integer[SLICE_START] = integer(n, "start");
            p.integer[SLICE_END] = integer(n, "end");
            break;
        case SW_OP_SOFTCAP: p.real[SCALAR_VALUE] = real(n, "cap"); break;
        case SW_OP_MUL_SCALAR: p.real[SCALAR_VALUE] = real(n, "value"); break;
        default: break;
    }
    return p;
}

static void put_port(words *w, const sw_port *p, uint32_t direction, uint32_t input, uint32_t output) {
    put_text(w, p->name);
    put(w, direction);
    put(w, p->role);
    put(w, input);
    put(w, output);
}

static const sw_port *same_name(const sw_port *const *ports, uint64_t count, const sw_port *wanted) {
    for (uint64_t i = 0; i < count; i++) {
        if (ports[i]->role == SW_ROLE_STATE && strcmp(ports[i]->name, wanted->name) == 0) return ports[i];
    }
    return NULL;
}

/* Ports in the order of inputs, then outputs; a state that is both is one port. */
static void put_ports(words *w, const sw_entry *e) {
    uint64_t count = e->input_count;
    for (uint64_t i = 0; i < e->output_count; i++) {
        count += e->outputs[i]->role != SW_ROLE_STATE || !same_name(e->inputs, e->input_count, e->outputs[i]);
    }
    put(w, count);
    for (uint64_t i = 0; i < e->input_count; i++) {
        const sw_port *p = e->inputs[i];
        const sw_port *written = p->role == SW_ROLE_STATE ? same_name(e->outputs, e->output_count, p) : NULL;
        const uint32_t direction = p->role != SW_ROLE_STATE ? SW_BINDING_INPUT
                                   : written                ? SW_BINDING_STATE
                                                            : SW_BINDING_STATE_READ;
        put_port(w, p, direction, p->tensor, written ? written->tensor : SW_NO_TENSOR);
    }
    for (uint64_t i = 0; i < e->output_count; i++) {
        const sw_port *p = e->outputs[i];
        if (p->role == SW_ROLE_STATE && same_name(e->inputs, e->input_count, p)) continue;
        put_port(w, p, SW_BINDING_OUTPUT, SW_NO_TENSOR, p->tensor);
    }
}

static uint64_t aligned(uint64_t value) {
    return (value + WEIGHT_ALIGNMENT - 1) / WEIGHT_ALIGNMENT * WEIGHT_ALIGNMENT;
}

/* Offset of a weight from the start of the first, plus 1; 0: the tensor is not a weight. */
static uint64_t weight_place(const sw_work_order *order, const sw_entry *e, uint32_t index) {
    for (uint64_t i = 0; i < e->constant_count; i++) {
        if (e->constants[i]->tensor != index) continue;
        uint64_t offset = 0;
        for (uint64_t j = 0; j < order->weight_count; j++) {
            if (order->weights[j] == e->constants[i]->weight) return offset + 1;
            offset += aligned(order->weights[j]->length);
        }
    }
    return 0;
}

static sw_error *put_entry(words *w, const sw_work_order *order, const sw_entry *e) {
    char reason[200], layer[24];
    if (e->tensor_count > NODE_LIMIT || e->node_count > NODE_LIMIT) {
        return fail_with(SW_ERROR_RESOURCE_LIMIT, "limit", "ops", "`%s` has %llu nodes, at most %u fit", e->name,
                         (unsigned long long)e->node_count, NODE_LIMIT);
    }
    put_text(w, e->name);
    put(w, e->rows);
    put(w, e->context);
    put(w, e->tensor_count);
    for (uint64_t i = 0; i < e->tensor_count; i++) {
        const sw_tensor *t = e->tensors[i];
        put(w, t->dtype);
        put(w, t->rank);
        for (uint32_t axis = 0; axis < t->rank; axis++) put(w, t->shape[axis]);
        put(w, weight_place(order, e, (uint32_t)i));
    }
    put(w, e->node_count);
    for (uint64_t i = 0; i < e->node_count; i++) {
        const sw_node *n = e->nodes[i];
        const char *why = refusal(e, n, reason, sizeof reason);
        if (why) {
            snprintf(layer, sizeof layer, "%lld", (long long)n->layer);
            return fail_with(SW_ERROR_UNSUPPORTED_OP, "layer", layer, "node `%.80s`: %s", n->name, why);
        }
        put(w, n->op);
        for (uint64_t place = 0; place < 4; place++) put(w, place < n->input_count ? n->inputs[place] : SW_NO_TENSOR);
        put(w, n->outputs[0]);
        const parameters p = numbers(n);
        for (int k = 0; k < 4; k++) put_real(w, p.real[k]);
        for (int k = 0; k < 8; k++) put(w, (uint64_t)p.integer[k]);
    }
    put_ports(w, e);
    return NULL;
}

sw_error *program_compile(const sw_work_order *order, const sw_compile_output *output) {
#ifdef SW_TEMPLATE_OPS_LIMIT
    for (uint64_t i = 0; i < order->entry_count; i++) {
        const uint64_t nodes = order->entries[i]->node_count, most = SW_TEMPLATE_OPS_LIMIT;
        if (nodes <= most) continue;
        return fail_over_limit("ops", nodes, most, "%" PRIu64 " nodes in `%.60s`, more than the %" PRIu64 " that this shim supports",
                               nodes, order->entries[i]->name, most);
    }
#endif
    words w = {0};
    sw_error *error = NULL;
    put(&w, order->entry_count);
    for (uint64_t i = 0; i < order->entry_count && !error; i++) {
        output->progress(output->context, (uint32_t)(500 * i / order->entry_count), "translating");
        error = put_entry(&w, order, order->entries[i]);
    }
    if (!error && w.failed) error = fail(SW_ERROR_RESOURCE_LIMIT, "not enough memory for the program");
    if (error) {
        free(w.data);
        return error;
    }

    uint64_t weight_bytes = 0;
    for (uint64_t i = 0; i < order->weight_count; i++) weight_bytes += aligned(order->weights[i]->length);
    static const uint8_t zeros[64];
    const uint64_t program_bytes = w.count * 8, header[4] = {MAGIC, w.count, aligned(32 + program_bytes), weight_bytes};
    uint32_t stop = output->write(output->context, header, sizeof header);
    stop = stop ? stop : output->write(output->context, w.data, program_bytes);
    stop = stop ? stop : output->write(output->context, zeros, header[2] - 32 - program_bytes);
    free(w.data);
    for (uint64_t i = 0; i < order->weight_count && !stop; i++) {
        const sw_weight *weight = order->weights[i];
        output->progress(output->context, (uint32_t)(500 + 500 * i / order->weight_count), "writing weights");
        if (output->cancelled(output->context)) return fail(SW_ERROR_CANCELLED, "the compilation was cancelled");
        stop = output->write(output->context, weight->data, weight->length);
        stop = stop ? stop : output->write(output->context, zeros, aligned(weight->length) - weight->length);
    }
    /* The head contains all that compatibility needs: the format, and the length of a complete artefact. */
    const uint64_t head[2] = {MAGIC, header[2] + weight_bytes};
    stop = stop ? stop : output->head(output->context, head, sizeof head);
    if (stop && output->cancelled(output->context)) return fail(SW_ERROR_CANCELLED, "the compilation was cancelled");
    if (stop) return fail(SW_ERROR_INTERNAL, "the host accepts no more of the artefact");
    for (uint64_t i = 0; i < order->flag_count; i++) {
        const sw_flag_verdict verdict = {
            .size = sizeof verdict,
            .name = order->flags[i]->key,
            .verdict = SW_FLAG_UNKNOWN,
            .evidence = "this shim has no flags",
        };
        output->flag(output->context, &verdict);
    }
    return NULL;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------ */

typedef struct reader {
    const uint64_t *at;
    uint64_t left;
    int failed;
} reader;

static uint64_t get(reader *r) {
    if (r->left == 0) {
        r->failed = 1;
        return 0;
    }
    r->left--;
    return *r->at++;
}

/* A count that must not exceed `limit`. */
static uint64_t get_count(reader *r, uint64_t limit) {
    const uint64_t count = get(r);
    if (count > limit) r->failed = 1;
    return r->failed ? 0 : count;
}

static char *get_text(reader *r) {
    const uint64_t length = get_count(r, 1 << 12), whole = (length + 7) / 8;
    if (whole > r->left) r->failed = 1;
    char *text = r->failed ? NULL : malloc(length + 1);
    if (!text) {
        r->failed = 1;
        return NULL;
    }
    memcpy(text, r->at, length);
    text[length] = 0;
    r->at += whole;
    r->left -= whole;
    return text;
}

static double get_real(reader *r) {
    const uint64_t bits = get(r);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

typedef struct mapped_weights {
    const uint8_t *start;
    uint64_t length;
} mapped_weights;

static void get_tensor(reader *r, mapped_weights weights, tensor *t) {
    t->dtype = (uint32_t)get_count(r, SW_DTYPE_I64);
    t->rank = (uint32_t)get_count(r, MAX_RANK);
    t->elements = 1;
    for (uint32_t axis = 0; axis < t->rank; axis++) {
        t->shape[axis] = get_count(r, BYTES_LIMIT);
        if (t->shape[axis] != 0 && t->elements > BYTES_LIMIT / t->shape[axis]) r->failed = 1;
        t->elements = r->failed ? 0 : t->elements * t->shape[axis];
    }
    const uint64_t place = get(r), bytes = t->elements * element_bytes(t->dtype);
    if (place == 0) return;
    if (place - 1 > weights.length || bytes > weights.length - (place - 1) || (place - 1) % WEIGHT_ALIGNMENT != 0 ||
        element_bytes(t->dtype) == 0) {
        r->failed = 1;
        return;
    }
    /* Weights are read only; no kernel writes to an operand. */
    t->data = (void *)(uintptr_t)(weights.start + (place - 1));
}

static int known(const entry *e, uint32_t index) { return index < e->tensor_count; }

static uint64_t last_axis(const tensor *t) { return t->rank == 0 ? 1 : t->shape[t->rank - 1]; }

static int is_f32(const tensor *t) { return t->dtype == SW_DTYPE_F32; }

static int is_float(const tensor *t) { return t->dtype == SW_DTYPE_F32 || t->dtype == SW_DTYPE_BF16; }

static int same_shape(const tensor *a, const tensor *b) {
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof a->shape[0]) == 0;
}

static int broadcasts(const tensor *from, const tensor *to) {
    if (from->rank > to->rank) return 0;
    for (uint32_t axis = 0; axis < from->rank; axis++) {
        const uint64_t extent = from->shape[axis], wanted = to->shape[axis + to->rank - from->rank];
        if (extent != wanted && extent != 1) return 0;
    }
    return 1;
}

/* Whether a kernel may be called with these operands: everything that it relies on without looking. */
static int is_sound(const entry *e, const node *n) {
    const tensor *in[4] = {0}, *out = &e->tensors[n->output];
    for (int i = 0; i < 4; i++) in[i] = n->inputs[i] == SW_NO_TENSOR ? NULL : &e->tensors[n->inputs[i]];
    const int64_t *integers = n->numbers.integer;
    const tensor *x = in[0];
    if (!x || !is_f32(out)) return 0;
    switch (n->op) {
        case SW_OP_LINEAR:
            return in[1] && in[1]->rank == 2 && is_f32(x) && is_float(in[1]) && in[1]->shape[1] > 0 &&
                   last_axis(x) == in[1]->shape[1] && out->elements == x->elements / in[1]->shape[1] * in[1]->shape[0] &&
                   (!in[2] || (is_float(in[2]) && in[2]->elements == in[1]->shape[0]));
        case SW_OP_RMS_NORM: {
            const uint64_t width = (uint64_t)integers[RMS_WIDTH];
            return width > 0 && is_f32(x) && x->elements % width == 0 && out->elements == x->elements &&
                   (!in[1] || (is_float(in[1]) && in[1]->elements == width));
        }
        case SW_OP_ROPE: {
            const uint64_t head_dim = (uint64_t)integers[ROPE_HEAD_DIM], rotated = (uint64_t)integers[ROPE_ROTATED];
            return in[1] && in[1]->dtype == SW_DTYPE_I32 && is_f32(x) && head_dim > 0 && head_dim % 2 == 0 &&
                   rotated <= head_dim / 2 && last_axis(x) > 0 && last_axis(x) % head_dim == 0 &&
                   in[1]->elements == x->elements / last_axis(x) && out->elements == x->elements;
        }
        case SW_OP_ATTENTION: {
            const uint64_t heads = (uint64_t)integers[ATT_HEADS], kv = (uint64_t)integers[ATT_KV_HEADS];
            const uint64_t d = (uint64_t)integers[ATT_HEAD_DIM];
            if (heads == 0 || kv == 0 || d == 0 || heads > NODE_LIMIT || d > NODE_LIMIT || heads % kv != 0) return 0;
            return in[1] && in[2] && in[3] && is_f32(x) && is_f32(in[1]) && is_f32(in[2]) &&
                   in[3]->dtype == SW_DTYPE_I32 && in[1]->rank == 2 && same_shape(in[1], in[2]) &&
                   in[1]->shape[0] > 0 && in[1]->shape[1] == kv * d && x->elements % (heads * d) == 0 &&
                   in[3]->elements == x->elements / (heads * d) && out->elements == x->elements &&
                   integers[ATT_WINDOW] >= 0;
        }
        case SW_OP_STATE_UPDATE:
            return in[1] && in[2] && is_f32(x) && x->rank == 2 && is_f32(in[1]) && in[2]->dtype == SW_DTYPE_I32 &&
                   in[1]->elements == in[2]->elements * x->shape[1] && same_shape(x, out);
        case SW_OP_GELU:
        case SW_OP_SILU:
        case SW_OP_SOFTCAP:
        case SW_OP_MUL_SCALAR: return is_float(x) && out->elements == x->elements;
        case SW_OP_RESHAPE: return is_f32(x) && out->elements == x->elements;
        case SW_OP_ADD:
        case SW_OP_MUL:
            return in[1] && is_float(x) && is_float(in[1]) && broadcasts(x, out) && broadcasts(in[1], out);
        case SW_OP_SLICE: {
            const uint64_t axis = (uint64_t)integers[SLICE_AXIS], start = (uint64_t)integers[SLICE_START];
            if (!is_float(x) || x->rank != out->rank || axis >= x->rank) return 0;
            for (uint32_t i = 0; i < x->rank; i++) {
                if (i != axis && x->shape[i] != out->shape[i]) return 0;
            }
            return start <= x->shape[axis] && out->shape[axis] <= x->shape[axis] - start;
        }
        default: return 0;
    }
}

/* Results that live elsewhere than in scratch memory: a reshape is its operand, an updated state the state. */
static int is_alias(const node *n) { return n->op == SW_OP_RESHAPE || n->op == SW_OP_STATE_UPDATE; }

/* The state port that an update writes through; null when it would write to anything else. */
static const port *updated_port(const entry *e, const node *n) {
    for (uint64_t i = 0; i < e->port_count; i++) {
        const port *p = &e->ports[i];
        if (p->direction == SW_BINDING_STATE && p->input == n->inputs[0] && p->output == n->output) return p;
    }
    return NULL;
}

/* Checks that every operand has its value before it is read, that every result is written once, and that only states are
 * updated. */
static int is_ordered(const entry *e) {
    uint8_t *ready = calloc(e->tensor_count + 1, 1);
    if (!ready) return 0;
    int sound = 1;
    for (uint64_t i = 0; i < e->tensor_count; i++) ready[i] = e->tensors[i].data != NULL;
    for (uint64_t i = 0; i < e->port_count; i++) {
        if (e->ports[i].input != SW_NO_TENSOR) ready[e->ports[i].input] = 1;
    }
    for (uint64_t i = 0; i < e->node_count && sound; i++) {
        const node *n = &e->nodes[i];
        for (int place = 0; place < 4; place++) sound &= n->inputs[place] == SW_NO_TENSOR || ready[n->inputs[place]];
        sound &= !ready[n->output] && (n->op != SW_OP_STATE_UPDATE || updated_port(e, n) != NULL);
        ready[n->output] = 1;
    }
    for (uint64_t i = 0; i < e->port_count; i++) {
        sound &= e->ports[i].output == SW_NO_TENSOR || ready[e->ports[i].output];
    }
    free(ready);
    return sound;
}

static int get_scratch(entry *e) {
    uint64_t total = 0, scores = 0;
    for (uint64_t i = 0; i < e->node_count; i++) {
        const node *n = &e->nodes[i];
        if (!is_alias(n)) total += e->tensors[n->output].elements;
        if (n->op == SW_OP_ATTENTION && e->tensors[n->inputs[1]].shape[0] > scores) {
            scores = e->tensors[n->inputs[1]].shape[0];
        }
        if (total > BYTES_LIMIT / sizeof(float)) return 0;
    }
    e->scratch = calloc(total + scores + 1, sizeof(float));
    if (!e->scratch) return 0;
    e->scores = e->scratch + total;
    float *next = e->scratch;
    for (uint64_t i = 0; i < e->node_count; i++) {
        const node *n = &e->nodes[i];
        if (is_alias(n)) continue;
        e->tensors[n->output].data = next;
        next += e->tensors[n->output].elements;
    }
    return 1;
}

static int get_entry(reader *r, mapped_weights weights, entry *e) {
    e->name = get_text(r);
    e->rows = get(r);
    e->context = get(r);
    const uint64_t tensors = get_count(r, NODE_LIMIT);
    e->tensors = calloc(tensors + 1, sizeof *e->tensors);
    if (r->failed || !e->tensors) return 0;
    e->tensor_count = tensors;
    for (uint64_t i = 0; i < tensors && !r->failed; i++) get_tensor(r, weights, &e->tensors[i]);
    const uint64_t nodes = get_count(r, NODE_LIMIT);
    e->nodes = calloc(nodes + 1, sizeof *e->nodes);
    if (r->failed || !e->nodes) return 0;
    e->node_count = nodes;
    for (uint64_t i = 0; i < nodes && !r->failed; i++) {
        node *n = &e->nodes[i];
        n->op = (uint32_t)get(r);
        for (int place = 0; place < 4; place++) {
            n->inputs[place] = (uint32_t)get(r);
            if (n->inputs[place] != SW_NO_TENSOR && !known(e, n->inputs[place])) r->failed = 1;
        }
        n->output = (uint32_t)get(r);
        for (int k = 0; k < 4; k++) n->numbers.real[k] = get_real(r);
        for (int k = 0; k < 8; k++) n->numbers.integer[k] = (int64_t)get(r);
        if (r->failed || !known(e, n->output) || !is_sound(e, n)) return 0;
    }
    const uint64_t ports = get_count(r, NODE_LIMIT);
    e->ports = calloc(ports + 1, sizeof *e->ports);
    if (r->failed || !e->ports) return 0;
    e->port_count = ports;
    for (uint64_t i = 0; i < ports && !r->failed; i++) {
        port *p = &e->ports[i];
        p->name = get_text(r);
        p->direction = (uint32_t)get(r);
        p->role = (uint32_t)get(r);
        p->input = (uint32_t)get(r);
        p->output = (uint32_t)get(r);
        const int in = p->input != SW_NO_TENSOR, out = p->output != SW_NO_TENSOR;
        if ((!in && !out) || (in && !known(e, p->input)) || (out && !known(e, p->output))) return 0;
        if (in && element_bytes(e->tensors[p->input].dtype) != 4) return 0;
        if (out && element_bytes(e->tensors[p->output].dtype) != 4) return 0;
        if (in && e->tensors[p->input].data) return 0;
        const int both = p->direction == SW_BINDING_STATE;
        if (both != (in && out) || (p->direction == SW_BINDING_OUTPUT) != (out && !in)) return 0;
        if (both && !same_shape(&e->tensors[p->input], &e->tensors[p->output])) return 0;
    }
    return !r->failed && is_ordered(e) && get_scratch(e);
}

sw_error *program_load(const sw_artefact *artefact, sw_shard **place) {
    const uint64_t *start = artefact->pointer;
    if (artefact->length < 32 || artefact->length % 8 != 0 || start[0] != MAGIC) {
        return fail(SW_ERROR_CORRUPT_ARTEFACT, "not an artefact of this shim");
    }
    const uint64_t count = start[1], weights_at = start[2], weight_bytes = start[3];
    if (count > (artefact->length - 32) / 8 || weights_at > artefact->length || weights_at < 32 + count * 8 ||
        weights_at % WEIGHT_ALIGNMENT != 0 || weight_bytes != artefact->length - weights_at) {
        return fail(SW_ERROR_CORRUPT_ARTEFACT, "the lengths in the artefact contradict its %llu bytes",
                    (unsigned long long)artefact->length);
    }
    reader r = {start + 4, count, 0};
    const mapped_weights weights = {(const uint8_t *)artefact->pointer + weights_at, weight_bytes};
    sw_shard *shard = calloc(1, sizeof *shard);
    if (!shard) return fail(SW_ERROR_RESOURCE_LIMIT, "not enough memory for the shard");
    atomic_init(&shard->cancelled, 0);
    const uint64_t entries = get_count(&r, 64);
    shard->entries = calloc(entries + 1, sizeof *shard->entries);
    int sound = shard->entries != NULL;
    for (uint64_t i = 0; i < entries && sound; i++) {
        shard->entry_count = i + 1;
        sound = get_entry(&r, weights, &shard->entries[i]);
    }
    if (!sound || r.failed || r.left != 0) {
        program_free(shard);
        return fail(SW_ERROR_CORRUPT_ARTEFACT, "the program is damaged or does not fit into memory");
    }
    *place = shard;
    return NULL;
}

void program_free(sw_shard *shard) {
    for (uint64_t i = 0; i < shard->entry_count; i++) {
        entry *e = &shard->entries[i];
        for (uint64_t j = 0; j < e->port_count; j++) free(e->ports[j].name);
        free(e->name);
        free(e->tensors);
        free(e->nodes);
        free(e->ports);
        free(e->scratch);
    }
    free(shard->entries);
    free(shard);
}

/* ---- Running -------------------------------------------------------------------------------------------------------------- */

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_node(entry *e, const node *n) {
    const tensor *in[4];
    for (int i = 0; i < 4; i++) in[i] = n->inputs[i] == SW_NO_TENSOR ? NULL : &e->tensors[n->inputs[i]];
    tensor *out = &e->tensors[n->output];
    switch (n->op) {
        case SW_OP_LINEAR: kernel_linear(in[0], in[1], in[2], out); break;
        case SW_OP_RMS_NORM: kernel_rms_norm(in[0], in[1], &n->numbers, out); break;
        case SW_OP_ROPE: kernel_rope(in[0], in[1], &n->numbers, out); break;
        case SW_OP_ATTENTION: kernel_attention(in[0], in[1], in[2], in[3], &n->numbers, e->scores, out); break;
        case SW_OP_STATE_UPDATE:
            out->data = in[0]->data;
            kernel_state_update(out, in[1], in[2]);
            break;
        case SW_OP_GELU: kernel_gelu(in[0], out); break;
        case SW_OP_SILU: kernel_silu(in[0], out); break;
        case SW_OP_SOFTCAP: kernel_softcap(in[0], &n->numbers, out); break;
        case SW_OP_ADD: kernel_binary('+', in[0], in[1], out); break;
        case SW_OP_MUL: kernel_binary('*', in[0], in[1], out); break;
        case SW_OP_MUL_SCALAR: kernel_mul_scalar(in[0], &n->numbers, out); break;
        case SW_OP_RESHAPE: out->data = in[0]->data; break;
        case SW_OP_SLICE: kernel_slice(in[0], &n->numbers, out); break;
        default: break; /* refused when it was loaded */
    }
}

sw_error *program_run(sw_shard *shard, const sw_run *run) {
    atomic_store(&shard->cancelled, 0);
    const uint64_t start = run->deadline_nanoseconds ? now() : 0;
    if (run->entry >= shard->entry_count) return fail(SW_ERROR_INVALID_ARGUMENT, "no such entry");
    entry *e = &shard->entries[run->entry];
    if (run->rows == 0 || run->rows > e->rows || run->bound_count != e->port_count) {
        return fail(SW_ERROR_INVALID_ARGUMENT, "%llu rows and %llu bindings do not fit `%s`",
                    (unsigned long long)run->rows, (unsigned long long)run->bound_count, e->name);
    }
    for (uint64_t i = 0; i < e->port_count; i++) {
        const port *p = &e->ports[i];
        const sw_bound *b = run->bounds[i];
        const tensor *t = &e->tensors[p->input != SW_NO_TENSOR ? p->input : p->output];
        if (b->buffer || b->length < t->elements * 4 || (uintptr_t)b->pointer % 4 != 0 || (!b->pointer && t->elements)) {
            return fail_with(SW_ERROR_INVALID_ARGUMENT, "binding", p->name, "binding `%s` needs %llu bytes of host memory",
                             p->name, (unsigned long long)(t->elements * 4));
        }
        if (p->input != SW_NO_TENSOR) e->tensors[p->input].data = b->pointer;
    }
    for (uint64_t i = 0; i < e->node_count; i++) {
        if (atomic_load(&shard->cancelled)) return fail(SW_ERROR_CANCELLED, "the run was cancelled");
        if (run->deadline_nanoseconds && now() - start > run->deadline_nanoseconds) {
            return fail(SW_ERROR_DEADLINE, "the run's deadline has passed");
        }
        run_node(e, &e->nodes[i]);
    }
    for (uint64_t i = 0; i < e->port_count; i++) {
        const port *p = &e->ports[i];
        if (p->direction != SW_BINDING_OUTPUT) continue;
        memcpy(run->bounds[i]->pointer, e->tensors[p->output].data, e->tensors[p->output].elements * 4);
    }
    return NULL;
}
