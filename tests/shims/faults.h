/* What a test chip computes wrongly or fails in: one fault a line in `ORDERS.faults`, which is read at every compilation.
 *
 *     overflow NAME BITS BOUND       the result of the linear operation NAME, if its weights have at most BITS bits, becomes infinite
 *                                    where it is beyond BOUND, as a narrow accumulator's does
 *     fused NAME BITS BOUND          the same, unless the result leaves the shard: what is shown is not fused with what follows
 *     state NAME BITS BOUND          the same of the rows that the state update NAME writes, by the bits of the state
 *     no-taps - 0 0                  refuses what has a tap
 *     deadline - OPS 0               gives up compiling an entry of more than OPS operations
 *     memory - OPS 0                 has not the memory for an entry of more than OPS operations
 *     eats - OPS 0                   allocates without end for an entry of more than OPS operations
 *     load - BYTES 0                 cannot load an artefact of more than BYTES
 *     loads FILE 0 0                 notes each attempt to load an artefact in FILE
 *     driver NAME 0 0                the device is described as NAME, as a driver of another version would be
 *     slow - MICROSECONDS 0          every run takes so long
 *     meets FILE COUNT 0             notes the begin and the end of each compilation in FILE, and goes on once so many have begun
 *
 * NAME is the end of the operation's name. A fault is added to the graph before the CPU shim compiles it. */
#ifndef FAULTS_H
#define FAULTS_H

#include "shim.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_FAULTS 8

struct fault {
    char kind[16];
    char name[96];
    unsigned long bits;
    double bound;
};

static struct fault faults[MOST_FAULTS];

static int read_faults(void) {
    int count = 0;
    FILE *file = fopen(ORDERS ".faults", "r");
    if (!file) return 0;
    while (count < MOST_FAULTS && fscanf(file, "%15s %95s %lu %lf", faults[count].kind, faults[count].name,
                                         &faults[count].bits, &faults[count].bound) == 4) {
        count++;
    }
    fclose(file);
    return count;
}

static const struct fault *fault_of(int count, const char *kind) {
    for (int i = 0; i < count; i++) {
        if (strcmp(faults[i].kind, kind) == 0) return &faults[i];
    }
    return NULL;
}

static sw_error untapped = {
    .size = sizeof untapped,
    .error_class = SW_ERROR_UNSUPPORTED_OP,
    .message = "a value inside a graph cannot leave it",
};
static sw_error late = {
    .size = sizeof late,
    .error_class = SW_ERROR_DEADLINE,
    .message = "the compiler gave up after its time",
};
static sw_error exhausted = {
    .size = sizeof exhausted,
    .error_class = SW_ERROR_RESOURCE_LIMIT,
    .message = "the compiler's memory is exhausted",
};
static sw_error unloaded = {
    .size = sizeof unloaded,
    .error_class = SW_ERROR_RESOURCE_LIMIT,
    .message = "the chip has no memory left for the artefact",
};

static sw_error stopped = {
    .size = sizeof stopped,
    .error_class = SW_ERROR_CANCELLED,
    .message = "the compiler was stopped",
};

static int is_fault(const sw_error *error) {
    return error == &untapped || error == &late || error == &exhausted || error == &unloaded || error == &stopped;
}

/* Adds a line to a file that other processes add to. */
static void note(const char *path, const char *what) {
    FILE *file = fopen(path, "a");
    if (!file) return;
    fprintf(file, "%s " NAME "\n", what);
    fclose(file);
}

static unsigned long begun(const char *path) {
    char line[128];
    unsigned long count = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) count += strncmp(line, "begin ", 6) == 0;
    if (file) fclose(file);
    return count;
}

/* Waits until as many compilations have begun as are to meet; an error if they do not in two minutes. */
static sw_error *meet(const struct fault *fault, const sw_compile_output *out) {
    note(fault->name, "begin");
    for (int tries = 0; begun(fault->name) < fault->bits; tries++) {
        if (out->cancelled(out->context)) return &stopped;
        if (tries > 12000) return &late;
        usleep(10000);
    }
    return NULL;
}

static unsigned long bits_of(uint32_t dtype) {
    switch (dtype) {
    case SW_DTYPE_I2: return 2;
    case SW_DTYPE_I4: return 4;
    case SW_DTYPE_I8:
    case SW_DTYPE_U8: return 8;
    case SW_DTYPE_F32:
    case SW_DTYPE_I32: return 32;
    default: return 16;
    }
}

static int ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

static int leaves(const sw_entry *entry, uint32_t tensor) {
    for (uint64_t i = 0; i < entry->output_count; i++) {
        if (entry->outputs[i]->tensor == tensor) return 1;
    }
    return 0;
}

/* What becomes of an entry whose nodes and tensors may be more. All of it lives until the process ends: tests are short. */
struct rewritten {
    sw_entry entry;
    const sw_tensor **tensors;
    const sw_node **nodes;
};

static uint32_t add_tensor(struct rewritten *to, uint32_t like) {
    static unsigned long made;
    char *name = malloc(32);
    snprintf(name, 32, "fault.%lu", made++);
    sw_tensor *tensor = malloc(sizeof *tensor);
    *tensor = *to->tensors[like];
    tensor->name = name;
    to->tensors[to->entry.tensor_count] = tensor;
    return (uint32_t)to->entry.tensor_count++;
}

static void add_scale(struct rewritten *to, const sw_node *at, uint32_t from, uint32_t into, double factor) {
    sw_attribute *value = calloc(1, sizeof *value);
    *value = (sw_attribute){.size = sizeof *value, .name = "value", .kind = SW_ATTRIBUTE_FLOAT, .number = (float)factor};
    const sw_attribute **attributes = malloc(sizeof *attributes);
    attributes[0] = value;
    uint32_t *ends = malloc(2 * sizeof *ends);
    ends[0] = from;
    ends[1] = into;
    sw_node *node = calloc(1, sizeof *node);
    *node = (sw_node){.size = sizeof *node,
                      .op = SW_OP_MUL_SCALAR,
                      .op_version = 1,
                      .name = to->tensors[into]->name,
                      .layer = at->layer,
                      .inputs = &ends[0],
                      .input_count = 1,
                      .outputs = &ends[1],
                      .output_count = 1,
                      .attributes = attributes,
                      .attribute_count = 1};
    if (into < to->entry.tensor_count && strncmp(node->name, "fault.", 6) != 0) {
        /* The name of what it replaces is taken by the operation itself. */
        char *name = malloc(strlen(node->name) + 8);
        sprintf(name, "fault.%s", node->name);
        node->name = name;
    }
    to->nodes[to->entry.node_count++] = node;
}

/* Scales up until what is beyond the bound is infinite, and down again, each in two steps: one factor may be no number. */
static void overflow(struct rewritten *to, const sw_node *at, uint32_t from, uint32_t into, double bound) {
    const double factor = sqrt((double)FLT_MAX / bound);
    const uint32_t between[3] = {add_tensor(to, from), add_tensor(to, from), add_tensor(to, from)};
    add_scale(to, at, from, between[0], factor);
    add_scale(to, at, between[0], between[1], factor);
    add_scale(to, at, between[1], between[2], 1.0 / factor);
    add_scale(to, at, between[2], into, 1.0 / factor);
}

static const sw_entry *with_faults(const sw_entry *entry, int count) {
    struct rewritten *to = calloc(1, sizeof *to);
    to->entry = *entry;
    to->tensors = malloc((entry->tensor_count + 4 * entry->node_count) * sizeof *to->tensors);
    to->nodes = malloc(5 * entry->node_count * sizeof *to->nodes);
    memcpy(to->tensors, entry->tensors, entry->tensor_count * sizeof *to->tensors);
    to->entry.node_count = 0;
    for (uint64_t i = 0; i < entry->node_count; i++) {
        const sw_node *node = entry->nodes[i];
        const struct fault *found = NULL;
        const int linear = node->op == SW_OP_LINEAR || node->op == SW_OP_DYNAMIC_LINEAR;
        const int update = node->op == SW_OP_STATE_UPDATE;
        for (int f = 0; f < count && (linear || update); f++) {
            const int fused = strcmp(faults[f].kind, "fused") == 0;
            const int kind = linear ? fused || strcmp(faults[f].kind, "overflow") == 0 : strcmp(faults[f].kind, "state") == 0;
            const uint32_t stored = node->inputs[linear ? 1 : 0];
            if (kind && ends_with(node->name, faults[f].name) && bits_of(entry->tensors[stored]->dtype) <= faults[f].bits &&
                !(fused && leaves(entry, node->outputs[0]))) {
                found = &faults[f];
            }
        }
        if (!found) {
            to->nodes[to->entry.node_count++] = node;
            continue;
        }
        sw_node *own = malloc(sizeof *own);
        *own = *node;
        uint32_t *ends = malloc((node->input_count + 1) * sizeof *ends);
        memcpy(ends, node->inputs, node->input_count * sizeof *ends);
        if (linear) {
            const uint32_t raw = add_tensor(to, node->outputs[0]);
            ends[node->input_count] = raw;
            own->outputs = &ends[node->input_count];
            to->nodes[to->entry.node_count++] = own;
            overflow(to, node, raw, node->outputs[0], found->bound);
        } else {
            const uint32_t rows = add_tensor(to, node->inputs[1]);
            overflow(to, node, node->inputs[1], rows, found->bound);
            ends[1] = rows;
            own->inputs = ends;
            to->nodes[to->entry.node_count++] = own;
        }
    }
    to->entry.nodes = to->nodes;
    to->entry.tensors = to->tensors;
    return &to->entry;
}

static sw_error *compile_with_faults(const sw_table *cpu, sw_shim *shim, const sw_work_order *order,
                                     const sw_compile_output *out) {
    const int count = read_faults();
    if (count == 0) return cpu->compile(shim, "cpu", order, out);
    const struct fault *meets = fault_of(count, "meets");
    sw_error *alone = meets ? meet(meets, out) : NULL;
    if (alone) return alone;
    const sw_entry **entries = malloc((order->entry_count + 1) * sizeof *entries);
    for (uint64_t i = 0; i < order->entry_count; i++) {
        const sw_entry *entry = order->entries[i];
        for (uint64_t port = 0; port < entry->output_count && fault_of(count, "no-taps"); port++) {
            if (entry->outputs[port]->role == SW_ROLE_TAP) return &untapped;
        }
        const struct fault *fault = fault_of(count, "deadline");
        if (fault && entry->node_count > fault->bits) return &late;
        fault = fault_of(count, "memory");
        if (fault && entry->node_count > fault->bits) return &exhausted;
        fault = fault_of(count, "eats");
        while (fault && entry->node_count > fault->bits) {
            char *eaten = malloc(1 << 24);
            if (!eaten) abort();
            memset(eaten, 1, 1 << 24);
        }
        entries[i] = with_faults(entry, count);
    }
    sw_work_order faulty = *order;
    faulty.entries = entries;
    sw_error *error = cpu->compile(shim, "cpu", &faulty, out);
    if (meets) note(meets->name, "end");
    return error;
}

static sw_error *load_with_faults(const sw_artefact *artefact) {
    const int count = read_faults();
    const struct fault *noted = fault_of(count, "loads");
    if (noted) note(noted->name, "load");
    const struct fault *fault = fault_of(count, "load");
    return fault && artefact->length > fault->bits ? &unloaded : NULL;
}

#endif
