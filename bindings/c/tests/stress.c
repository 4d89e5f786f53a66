/* `stress BUNDLE ROUNDS`: opens, uses, cancels and closes models from 8 threads, ROUNDS times each. Handles are closed
   in all orders, some by another thread and some twice. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "shardwright.h"

#define THREADS 8

static const char *bundle;
static int rounds;

static void fail(int line, int status) {
    sw_error error = {.size = sizeof error};
    sw_last_error(&error);
    fprintf(stderr, "line %d: %s: %s\n", line, sw_status_name(status), error.message);
    exit(1);
}

#define OK(call)                                    \
    do {                                            \
        sw_status status_ = (call);                 \
        if (status_ != SW_OK) fail(__LINE__, status_); \
    } while (0)

static void *cancel(void *session) {
    sw_session_cancel(session);
    return NULL;
}

static void *work(void *number) {
    unsigned seed = (unsigned)(size_t)number;
    for (int round = 0; round < rounds; ++round) {
        unsigned choice = (seed = seed * 1103515245 + 12345) >> 16;
        sw_model *model;
        sw_session *session;
        sw_reply *reply;
        sw_open_options options = {.size = sizeof options, .threads = 1, .no_proofs = 1};
        OK(sw_model_open(bundle, &options, &model));
        OK(sw_session_open(model, &session));
        sw_reply_settings settings = {.size = sizeof settings, .set = SW_SET_MAX_TOKENS, .max_tokens = 3};
        OK(sw_session_configure(session, &settings));
        if (choice & 1) {
            pthread_t other;
            if (pthread_create(&other, NULL, cancel, session)) fail(__LINE__, 0);
            if (sw_session_chat(session, "a", &reply) == SW_OK) {
                sw_event event = {.size = sizeof event};
                OK(sw_reply_next(reply, &event));
                OK(sw_reply_close(reply));
            }
            pthread_join(other, NULL);
        }
        if (choice & 2) {
            OK(sw_model_close(model));
            OK(sw_session_close(session));
        } else {
            OK(sw_session_close(session));
            OK(sw_model_close(model));
        }
        if (choice & 4 && sw_model_close(model) != SW_CLOSED) fail(__LINE__, 0);
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    bundle = arguments[1];
    rounds = atoi(arguments[2]);
    pthread_t threads[THREADS];
    for (size_t index = 0; index < THREADS; ++index)
        if (pthread_create(&threads[index], NULL, work, (void *)(index + 1))) return 3;
    for (size_t index = 0; index < THREADS; ++index) pthread_join(threads[index], NULL);
    return 0;
}
