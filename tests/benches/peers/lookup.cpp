// llama.cpp's own prompt lookup on given texts, for `--bench speculation -- peer=…`.
//
// `cargo xtask bench lookup` builds it with llama.cpp and runs it.
//
//     lookup MODEL.gguf TEXTS DRAFT THREADS
//
// TEXTS has a line for each text: ids of the prompt, `|`, ids of what follows, given to the model
// instead of what it would say. DRAFT is the most tokens drafted for a step; with 0 there is no
// lookup. Prints `TOKENS SECONDS STEPS DRAFTED ACCEPTED` of all that follows prompts, once for each
// line that it reads, so that two measurements can take turns with one model loaded.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"
#include "ngram-cache.h"

struct Text {
    std::vector<llama_token> prompt, given;
};

static std::vector<llama_token> ids(const std::string & words) {
    std::istringstream in(words);
    std::vector<llama_token> all;
    for (llama_token id; in >> id;) {
        all.push_back(id);
    }
    return all;
}

static void decode(llama_context * context, llama_batch & batch) {
    if (llama_decode(context, batch) != 0) {
        std::fprintf(stderr, "llama_decode failed\n");
        std::exit(1);
    }
}

static void add(llama_batch & batch, llama_token id, llama_pos at, bool logits) {
    const int row = batch.n_tokens++;
    batch.token[row] = id;
    batch.pos[row] = at;
    batch.n_seq_id[row] = 1;
    batch.seq_id[row][0] = 0;
    batch.logits[row] = logits;
}

int main(int count, char ** arguments) {
    if (count != 5) {
        std::fprintf(stderr, "lookup MODEL.gguf TEXTS DRAFT THREADS\n");
        return 2;
    }
    std::vector<Text> texts;
    std::ifstream file(arguments[2]);
    for (std::string line; std::getline(file, line);) {
        const size_t bar = line.find('|');
        texts.push_back({ids(line.substr(0, bar)), ids(line.substr(bar + 1))});
    }
    const int most = std::atoi(arguments[3]), threads = std::atoi(arguments[4]);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = 1024;
    parameters.n_threads = threads;
    parameters.n_threads_batch = threads;
    llama_context * context = model ? llama_init_from_model(model, parameters) : nullptr;
    if (!context) {
        std::fprintf(stderr, "%s cannot be loaded\n", arguments[1]);
        return 1;
    }
    llama_batch batch = llama_batch_init(1024, 0, 1);
    for (std::string turn; std::getline(std::cin, turn);) {
        long tokens = 0, steps = 0, drafted = 0, accepted = 0;
        std::chrono::duration<double> time(0);
        for (const Text & text : texts) {
            llama_memory_clear(llama_get_memory(context), true);
            batch.n_tokens = 0;
            for (size_t at = 0; at < text.prompt.size(); ++at) {
                add(batch, text.prompt[at], at, at + 1 == text.prompt.size());
            }
            decode(context, batch);
            std::vector<llama_token> history = text.prompt;
            common_ngram_cache own, dynamic, fixed;
            common_ngram_cache_update(own, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, history, history.size(), false);
            const auto start = std::chrono::steady_clock::now();
            // The first token is that after the prompt.
            size_t next = 0;
            history.push_back(text.given[next++]);
            common_ngram_cache_update(own, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, history, 1, false);
            while (next < text.given.size()) {
                const llama_pos past = history.size() - 1;
                llama_memory_seq_rm(llama_get_memory(context), 0, past, -1);
                std::vector<llama_token> draft = {history.back()};
                if (most > 0) {
                    common_ngram_cache_draft(
                        history, draft, most, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, own, dynamic, fixed);
                }
                batch.n_tokens = 0;
                for (size_t row = 0; row < draft.size(); ++row) {
                    add(batch, draft[row], past + row, true);
                }
                decode(context, batch);
                steps += 1;
                drafted += draft.size() - 1;
                for (size_t row = 1; next < text.given.size(); ++row) {
                    const llama_token id = text.given[next++];
                    history.push_back(id);
                    common_ngram_cache_update(own, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, history, 1, false);
                    if (row >= draft.size() || draft[row] != id) {
                        break;
                    }
                    accepted += 1;
                }
            }
            time += std::chrono::steady_clock::now() - start;
            tokens += text.given.size() - 1;
        }
        std::printf("%ld %f %ld %ld %ld\n", tokens, time.count(), steps, drafted, accepted);
        std::fflush(stdout);
    }
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
