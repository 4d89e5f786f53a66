/* `checks BUNDLE FOLDER`: calls the library as a correct program does, and as a wrong one does, with a model. Prints
   the sizes of structs, then the text of a greedy reply. */

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shardwright.h"

static const char question[] = "What does bug mean?";

static void fail(int line, const char *what) {
    sw_error error = {.size = sizeof error};
    sw_last_error(&error);
    fprintf(stderr, "line %d: %s: %s: %s\n", line, what, sw_status_name(error.status), error.message);
    exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define IS(call, expected) CHECK((call) == (expected))

static void print_sizes(void) {
#define SIZE(type) printf(#type " %zu\n", sizeof(type))
    SIZE(sw_error);
    SIZE(sw_open_options);
    SIZE(sw_memory);
    SIZE(sw_embed_options);
    SIZE(sw_part);
    SIZE(sw_turn);
    SIZE(sw_reply_settings);
    SIZE(sw_event);
    SIZE(sw_statistics);
    SIZE(sw_saved);
}

static sw_session *greedy_session(sw_model *model, uint64_t tokens) {
    sw_session *session;
    IS(sw_session_open(model, &session), SW_OK);
    sw_reply_settings settings = {.size = sizeof settings, .set = SW_SET_MAX_TOKENS | SW_SET_SAMPLE, .max_tokens = tokens};
    IS(sw_session_configure(session, &settings), SW_OK);
    return session;
}

/* Returns the text of the reply to the question. The caller frees it. */
static char *text_of(sw_reply *reply) {
    sw_result *result;
    size_t bytes;
    IS(sw_reply_text(reply, &result), SW_OK);
    const char *text = sw_result_text(result, &bytes);
    CHECK(text != NULL && strlen(text) == bytes);
    char *copy = malloc(bytes + 1);
    memcpy(copy, text, bytes + 1);
    IS(sw_result_close(result), SW_OK);
    IS(sw_result_close(result), SW_CLOSED);
    CHECK(sw_result_text(result, NULL) == NULL);
    return copy;
}

struct collected {
    char text[4096];
    int events;
    int stop_after;
};

static int32_t collect(void *user, const sw_event *event) {
    struct collected *into = user;
    CHECK(event->size == sizeof *event);
    if (event->kind == SW_EVENT_TEXT) strncat(into->text, event->text, sizeof into->text - strlen(into->text) - 1);
    return ++into->events == into->stop_after;
}

static void replies(sw_model *model) {
    sw_session *session = greedy_session(model, 24);
    sw_reply *reply;
    IS(sw_session_chat(session, question, &reply), SW_OK);
    char *pulled = text_of(reply);
    printf("%s\n", pulled);
    sw_event event = {.size = sizeof event};
    IS(sw_reply_next(reply, &event), SW_OK);
    CHECK(event.kind == SW_EVENT_END);
    sw_statistics statistics = {.size = sizeof statistics};
    IS(sw_reply_statistics(reply, &statistics), SW_OK);
    CHECK(statistics.generated_tokens > 0 && statistics.generated_tokens <= 24 && statistics.prompt_tokens > 0);
    IS(sw_reply_close(reply), SW_OK);
    IS(sw_reply_close(reply), SW_CLOSED);
    IS(sw_reply_next(reply, &event), SW_CLOSED);

    /* The same reply through a callback, and through turns. */
    struct collected collected = {.stop_after = -1};
    IS(sw_session_clear(session), SW_OK);
    IS(sw_session_chat(session, question, &reply), SW_OK);
    IS(sw_reply_each(reply, NULL, NULL), SW_ARGUMENT);
    IS(sw_reply_each(reply, collect, &collected), SW_OK);
    CHECK(strcmp(collected.text, pulled) == 0 && collected.events > 1);
    IS(sw_reply_close(reply), SW_OK);
    sw_part part = {.size = sizeof part, .kind = SW_PART_TEXT, .data = question, .count = SIZE_MAX};
    sw_turn turn = {.size = sizeof turn, .role = SW_ROLE_USER, .parts = &part, .part_count = 1};
    IS(sw_session_reply_to(session, &turn, 1, NULL, NULL, &reply), SW_OK);
    char *again = text_of(reply);
    CHECK(strcmp(again, pulled) == 0);
    free(again);
    IS(sw_reply_close(reply), SW_OK);
    sw_result *turns;
    IS(sw_session_turns(session, &turns), SW_OK);
    CHECK(strstr(sw_result_text(turns, NULL), "\"assistant\"") != NULL);
    CHECK(sw_result_floats(turns, NULL) == NULL);
    IS(sw_result_close(turns), SW_OK);

    /* A callback that ends a reply. Another call that ends it. */
    collected = (struct collected){.stop_after = 1};
    IS(sw_session_chat(session, question, &reply), SW_OK);
    IS(sw_reply_each(reply, collect, &collected), SW_OK);
    CHECK(collected.events == 1);
    IS(sw_reply_next(reply, &event), SW_CLOSED);
    IS(sw_reply_close(reply), SW_OK);
    sw_reply *first;
    IS(sw_session_chat(session, question, &first), SW_OK);
    IS(sw_session_clear(session), SW_OK);
    IS(sw_reply_next(first, &event), SW_CLOSED);
    IS(sw_reply_close(first), SW_OK);

    /* A cancellation ends the reply in progress, and no later one. */
    IS(sw_session_cancel(session), SW_OK);
    IS(sw_session_chat(session, question, &reply), SW_OK);
    IS(sw_reply_cancel(reply), SW_OK);
    int kind = SW_EVENT_END;
    do {
        IS(sw_reply_next(reply, &event), SW_OK);
        if (event.kind != SW_EVENT_END) kind = event.kind;
    } while (event.kind != SW_EVENT_END);
    CHECK(kind == SW_EVENT_DONE);
    IS(sw_reply_close(reply), SW_OK);
    IS(sw_session_clear(session), SW_OK);
    IS(sw_session_chat(session, question, &reply), SW_OK);
    again = text_of(reply);
    CHECK(strcmp(again, pulled) == 0);
    free(again);
    free(pulled);
    IS(sw_reply_close(reply), SW_OK);
    IS(sw_session_close(session), SW_OK);
}

static void wrong_arguments(sw_model *model) {
    sw_session *session = greedy_session(model, 4);
    sw_reply *reply = (sw_reply *)1;
    sw_event event = {.size = sizeof event};
    IS(sw_session_chat(session, NULL, &reply), SW_ARGUMENT);
    CHECK(reply == NULL);
    IS(sw_session_chat(session, "gr\xfcn", &reply), SW_ARGUMENT);
    IS(sw_session_chat(session, question, NULL), SW_ARGUMENT);
    IS(sw_session_chat((sw_session *)model, question, &reply), SW_CLOSED);
    IS(sw_session_chat((sw_session *)&event, question, &reply), SW_ARGUMENT);
    sw_part parts[2] = {{.size = sizeof *parts, .data = question, .count = SIZE_MAX}, {.size = 8}};
    IS(sw_session_chat_parts(session, parts, 2, NULL, NULL, &reply), SW_ARGUMENT);
    IS(sw_session_chat_parts(session, parts, SIZE_MAX, NULL, NULL, &reply), SW_ARGUMENT);
    parts[1] = (sw_part){.size = sizeof *parts, .kind = 99};
    IS(sw_session_chat_parts(session, parts, 2, NULL, NULL, &reply), SW_ARGUMENT);
    parts[1] = (sw_part){.size = sizeof *parts, .kind = SW_PART_SOUND_SAMPLES, .data = question, .count = SIZE_MAX / 2};
    IS(sw_session_chat_parts(session, parts, 2, NULL, NULL, &reply), SW_ARGUMENT);
    parts[1] = (sw_part){.size = sizeof *parts, .kind = SW_PART_PICTURE_BYTES, .data = question, .count = 5};
    CHECK(sw_session_chat_parts(session, parts, 2, NULL, NULL, &reply) != SW_OK);
    sw_turn turn = {.size = sizeof turn, .role = 7};
    IS(sw_session_reply_to(session, &turn, 1, NULL, NULL, &reply), SW_ARGUMENT);
    IS(sw_session_reply_to(session, NULL, 0, NULL, NULL, &reply), SW_ARGUMENT);
    IS(sw_session_answer(session, &reply), SW_ARGUMENT);
    IS(sw_session_tool_result(session, "absent", "1", SIZE_MAX), SW_ARGUMENT);
    IS(sw_session_set_tools(session, "["), SW_INVALID);
    IS(sw_session_choose_tool(session, SW_TOOLS_NAMED, NULL), SW_ARGUMENT);
    IS(sw_session_choose_tool(session, 9, NULL), SW_ARGUMENT);
    IS(sw_session_constrain(session, SW_GRAMMAR_REGEX, "("), SW_ARGUMENT);
    IS(sw_session_constrain(session, 9, "a"), SW_ARGUMENT);
    IS(sw_session_rewind(session, 5), SW_ARGUMENT);
    uint32_t beyond = UINT32_MAX;
    IS(sw_session_complete_tokens(session, &beyond, 1, &reply), SW_ARGUMENT);
    IS(sw_session_complete_tokens(session, NULL, 3, &reply), SW_ARGUMENT);
    sw_status status = sw_session_complete(session, "", SIZE_MAX, &reply);
    CHECK((status == SW_OK) == (reply != NULL));
    if (reply) IS(sw_reply_close(reply), SW_OK);
    sw_reply_settings settings = {.size = sizeof settings, .set = SW_SET_TOP_P, .top_p = 2};
    IS(sw_session_configure(session, &settings), SW_ARGUMENT);
    settings.size = 3;
    IS(sw_session_configure(session, &settings), SW_ARGUMENT);
    sw_result *result;
    IS(sw_model_embed(model, question, SIZE_MAX, NULL, &result), SW_UNSUPPORTED);
    CHECK(result == NULL);
    IS(sw_reply_next(NULL, &event), SW_ARGUMENT);
    IS(sw_session_chat(session, question, &reply), SW_OK);
    IS(sw_reply_next(reply, NULL), SW_ARGUMENT);
    event.size = 1;
    IS(sw_reply_next(reply, &event), SW_ARGUMENT);
    IS(sw_session_close(session), SW_OK);
    IS(sw_session_close(session), SW_CLOSED);
    event.size = sizeof event;
    IS(sw_reply_next(reply, &event), SW_CLOSED);
    IS(sw_reply_close(reply), SW_OK);
}

static void other_functions(sw_model *model, const char *folder) {
    sw_session *session = greedy_session(model, 8), *other;
    sw_reply *reply;
    sw_result *result;
    size_t count;
    IS(sw_session_constrain(session, SW_GRAMMAR_REGEX, "yes|no"), SW_OK);
    IS(sw_session_chat(session, question, &reply), SW_OK);
    char *text = text_of(reply);
    CHECK(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
    free(text);
    IS(sw_reply_close(reply), SW_OK);
    IS(sw_session_constrain(session, SW_GRAMMAR_NONE, NULL), SW_OK);

    char path[4096];
    snprintf(path, sizeof path, "%s/s\xc3\xb6ssion", folder);
    sw_saved saved = {.size = sizeof saved};
    IS(sw_session_save(session, path, &saved), SW_OK);
    CHECK(saved.tokens > 0 && saved.bytes > 0 && saved.has_states);
    IS(sw_session_restore(model, path, &other, &result), SW_OK);
    CHECK(result == NULL);
    IS(sw_session_close(other), SW_OK);
    IS(sw_session_fork(model, session, &other), SW_OK);
    IS(sw_session_tokens(other, &result), SW_OK);
    CHECK(sw_result_tokens(result, &count) != NULL && count == saved.tokens);
    IS(sw_result_close(result), SW_OK);
    IS(sw_session_close(other), SW_OK);

    uint64_t released, run;
    IS(sw_model_release_idle(model, &released, NULL), SW_OK);
    CHECK(released == 1);
    IS(sw_session_resume(session, &run), SW_OK);
    CHECK(run > 0);
    int32_t found;
    IS(sw_session_forget_oldest_turn(session, &found), SW_OK);
    CHECK(found == 1);
    IS(sw_session_placement(session, &result), SW_OK);
    CHECK(strstr(sw_result_text(result, NULL), "\"fallbacks\"") != NULL);
    IS(sw_result_close(result), SW_OK);
    IS(sw_session_close(session), SW_OK);

    IS(sw_model_tokenize(model, question, SIZE_MAX, 0, &result), SW_OK);
    const uint32_t *tokens = sw_result_tokens(result, &count);
    sw_result *back;
    IS(sw_model_detokenize(model, tokens, count, 0, &back), SW_OK);
    CHECK(strstr(sw_result_text(back, NULL), "bug") != NULL);
    IS(sw_result_close(back), SW_OK);
    IS(sw_result_close(result), SW_OK);
    sw_memory memory = {.size = sizeof memory};
    IS(sw_model_memory(model, &memory), SW_OK);
    CHECK(memory.weights > 0 && memory.session > 0 && memory.budget == 400000000 && memory.used <= memory.budget);
    IS(sw_model_report(model, &result), SW_OK);
    CHECK(strstr(sw_result_text(result, NULL), "\"notices\"") != NULL);
    IS(sw_result_close(result), SW_OK);
    IS(sw_model_prewarm(model, NULL, NULL), SW_OK);
}

static int32_t stop_at_once(void *user, uint32_t per_mille, const char *stage) {
    CHECK(per_mille <= 1000 && stage != NULL);
    return ++*(int *)user;
}

static int32_t count_notices_of_stages[3];

static void count_notice(void *user, sw_notice_kind kind, sw_notice_stage stage, const char *text) {
    CHECK(user == count_notices_of_stages && kind <= SW_NOTICE_NOTE && *text);
    ++count_notices_of_stages[stage];
}

static void *cancel_and_close(void *session) {
    usleep(1000);
    sw_session_cancel(session);
    usleep(1000);
    sw_session_close(session);
    return NULL;
}

/* A session that another thread cancels and closes, and a model that is closed before its sessions. */
static void other_threads(sw_model *model) {
    for (int round = 0; round < 20; ++round) {
        sw_session *session = greedy_session(model, 200);
        sw_reply *reply;
        pthread_t thread;
        IS(pthread_create(&thread, NULL, cancel_and_close, session), 0);
        if (sw_session_chat(session, question, &reply) == SW_OK) {
            sw_event event = {.size = sizeof event};
            sw_status status;
            do status = sw_reply_next(reply, &event);
            while (status == SW_OK && event.kind != SW_EVENT_END);
            CHECK(status == SW_OK || status == SW_CLOSED);
            IS(sw_reply_close(reply), SW_OK);
        }
        IS(pthread_join(thread, NULL), 0);
        IS(sw_session_close(session), SW_CLOSED);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    IS(sw_version(), SW_VERSION);
    print_sizes();
    sw_open_options options = {.size = sizeof options, .memory_budget = 400000000, .no_proofs = 1};
    sw_model *model, *second;
    int calls = 0;
    options.progress = stop_at_once;
    options.progress_user = &calls;
    IS(sw_model_open(arguments[1], &options, &model), SW_CANCELLED);
    CHECK(model == NULL && calls == 1);
    options.progress = NULL;
    IS(sw_model_open(arguments[1], &options, &model), SW_OK);
    IS(sw_model_notices(model, NULL, NULL), SW_ARGUMENT);
    IS(sw_model_notices(model, count_notice, count_notices_of_stages), SW_OK);
    replies(model);
    wrong_arguments(model);
    other_functions(model, arguments[2]);
    other_threads(model);

    IS(sw_model_open(arguments[1], &options, &second), SW_OK);
    sw_session *session = greedy_session(model, 8), *foreign;
    sw_reply *reply;
    IS(sw_session_fork(second, session, &foreign), SW_ARGUMENT);
    IS(sw_session_chat(session, question, &reply), SW_OK);
    IS(sw_model_close(model), SW_OK);
    IS(sw_model_close(model), SW_CLOSED);
    IS(sw_session_open(model, &foreign), SW_CLOSED);
    sw_event event = {.size = sizeof event};
    IS(sw_reply_next(reply, &event), SW_CLOSED);
    IS(sw_session_clear(session), SW_CLOSED);
    IS(sw_reply_close(reply), SW_OK);
    IS(sw_session_close(session), SW_OK);
    session = greedy_session(second, 8);
    IS(sw_session_chat(session, question, &reply), SW_OK);
    free(text_of(reply));
    IS(sw_session_close(session), SW_OK);
    IS(sw_reply_close(reply), SW_OK);
    IS(sw_model_close(second), SW_OK);
    return 0;
}
