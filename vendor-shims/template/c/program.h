/* The example shim's artefact: a flat program that is read back from its mapping and interpreted. */
#ifndef TEMPLATE_PROGRAM_H
#define TEMPLATE_PROGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "kernels.h"
#include "shim.h"

/* Build settings, so that one engine can emulate chips with different behaviour:
 *
 *   -DSW_TEMPLATE_NAME='"acme"'    the name that `describe` reports; the manifest must have the same
 *   -DSW_TEMPLATE_SOC='"acme-1"'   the SoC that its device reports; not defined: none
 *   -DSW_TEMPLATE_OPS_LIMIT=120    `compile` refuses an entry of more nodes; not defined: no such limit.
 *                                  `limits` does not report it, as vendors' compilers do not: a planner has to learn it
 *                                  from the refusal
 */
#ifndef SW_TEMPLATE_NAME
#define SW_TEMPLATE_NAME "template-c"
#endif

/* Most nodes, tensors and ports of an entry; also reported as the limit `ops`. */
#define NODE_LIMIT 65536u

/* A bound tensor of an entry. */
typedef struct port {
    char *name;
    uint32_t direction; /* SW_BINDING_… */
    uint32_t role;
    uint32_t input;  /* tensor it is as input; SW_NO_TENSOR: none */
    uint32_t output; /* tensor it is as output; SW_NO_TENSOR: none */
} port;

typedef struct node {
    uint32_t op;
    uint32_t inputs[4]; /* SW_NO_TENSOR: absent */
    uint32_t output;
    parameters numbers;
} node;

typedef struct entry {
    char *name;
    uint64_t rows, context;
    tensor *tensors;
    uint64_t tensor_count;
    node *nodes;
    uint64_t node_count;
    port *ports;
    uint64_t port_count;
    float *scratch; /* results of nodes, and the scores of one attention row */
    float *scores;
} entry;

struct sw_shard {
    entry *entries;
    uint64_t entry_count;
    atomic_int cancelled;
};

/* Why a node is not supported; null if it is. `reason` has room for the text. */
const char *refusal(const sw_entry *e, const sw_node *n, char *reason, uint64_t room);

/* error.c */
sw_error *fail(uint32_t error_class, const char *format, ...);
sw_error *fail_with(uint32_t error_class, const char *key, const char *value, const char *format, ...);
/* A resource limit exceeded, with the details `limit`, `value` and `max` that a planner learns from. */
sw_error *fail_over_limit(const char *limit, uint64_t value, uint64_t max, const char *format, ...);
void free_error(sw_error *error);

/* program.c */
sw_error *program_compile(const sw_work_order *order, const sw_compile_output *output);
sw_error *program_load(const sw_artefact *artefact, sw_shard **shard);
void program_free(sw_shard *shard);
sw_error *program_run(sw_shard *shard, const sw_run *run);

#endif
