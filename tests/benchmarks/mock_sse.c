/* An OpenAI-compatible SSE server of known behaviour: one thread, epoll, a heap of due times.
 *
 * mock_sse [--ttft-ms 200] [--itl-ms 10] [--tokens 140] [--log FILE]
 *
 * Listens on a free loopback port and prints it. Every answer gives its first token TTFT after the
 * whole request has been read and one more every ITL, each as one chunk of about 270 bytes in a write
 * of its own; then usage, [DONE] and the terminating chunk. Due times are absolute, so a late token
 * does not move the next. "max_tokens" of a request outranks --tokens. GET /v1/models and /health are
 * answered, as some tools ask for them before they begin.
 *
 * On SIGTERM, or when its parent dies, it writes one line per whole answer to FILE: the CLOCK_MONOTONIC
 * ns at which the request had been read, its first and its last token were written, and its tokens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512
#define REQUEST_BYTES_MAX (16 << 20)
#define RETRY_NS 1000000

#define ID "cmpl-2f1c9a3e5b7d4f60a1b2c3d4e5f60718"
#define COMPLETION "{\"id\":\"" ID "\",\"object\":\"text_completion\",\"created\":1767225600,\"model\":\"mock\","
#define CHAT "{\"id\":\"chat" ID "\",\"object\":\"chat.completion.chunk\",\"created\":1767225600,\"model\":\"mock\","
#define TEXT "\"choices\":[{\"index\":0,\"text\":\" token\",\"logprobs\":null,\"finish_reason\":%s," \
             "\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}],\"usage\":null}"
#define DELTA "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":%s," \
              "\"stop_reason\":null,\"token_ids\":null}],\"usage\":null}"
#define FIRST "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null," \
              "\"finish_reason\":null}],\"prompt_token_ids\":null,\"usage\":null}"
#define USAGE "\"choices\":[],\"usage\":{\"prompt_tokens\":5600,\"total_tokens\":%d,\"completion_tokens\":%d}}"

static const char HEAD[] = "HTTP/1.1 200 OK\r\nserver: mock\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                           "transfer-encoding: chunked\r\n\r\n";
static const char END[] = "0\r\n\r\n";
static const char HEALTHY[] = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
static const char NOT_FOUND[] = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\","
                             "\"max_model_len\":131072}]}";

enum step { READING, ROLE_CHUNK, TOKENS, USAGE_CHUNK, DONE_CHUNK, ENDING, CLOSED };

struct connection {
    int fd, chat, tokens, written; /* tokens: asked for; written: so far */
    enum step step;
    int64_t read_ns, first_ns, last_ns, due_ns;
    char *request;
    size_t have, room;
    size_t sent; /* bytes of the present piece that a full socket took already */
    int waits;   /* in the heap: must not be freed */
};

struct piece {
    char bytes[600];
    int length;
};

enum { TOKEN, LAST, ROLE };

struct record {
    int64_t read_ns, first_ns, last_ns;
    int tokens;
};

static int64_t ttft_ns = 200 * 1000000LL, itl_ns = 10 * 1000000LL;
static int default_tokens = 140;
static const char *log_path;
static struct piece pieces[2][3], done; /* of completions and of chat */
static volatile sig_atomic_t stopped;
static int poller, listener;
static struct connection **heap;
static size_t waiting, heap_room;
static struct record *records;
static size_t recorded, record_room;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *grown(void *block, size_t *room, size_t least, size_t size) {
    while (*room < least) *room = *room ? 2 * *room : 256;
    block = realloc(block, *room * size);
    if (!block) die("memory");
    return block;
}

/* --- events as chunks of HTTP --- */

static void format_event(struct piece *piece, const char *format, ...) {
    char data[512];
    va_list values;
    va_start(values, format);
    vsnprintf(data, sizeof data, format, values);
    va_end(values);
    size_t length = strlen("data: ") + strlen(data) + 2;
    piece->length = snprintf(piece->bytes, sizeof piece->bytes, "%zx\r\ndata: %s\n\n\r\n", length, data);
}

static void format_pieces(void) {
    format_event(&pieces[0][TOKEN], COMPLETION TEXT, "null");
    format_event(&pieces[0][LAST], COMPLETION TEXT, "\"length\"");
    format_event(&pieces[1][TOKEN], CHAT DELTA, "null");
    format_event(&pieces[1][LAST], CHAT DELTA, "\"length\"");
    format_event(&pieces[1][ROLE], CHAT FIRST);
    format_event(&done, "[DONE]");
}

/* --- the heap of connections by due time --- */

static void heap_push(struct connection *c) {
    if (waiting == heap_room) heap = grown(heap, &heap_room, waiting + 1, sizeof *heap);
    size_t i = waiting++;
    while (i && heap[(i - 1) / 2]->due_ns > c->due_ns) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = c;
    c->waits = 1;
}

static struct connection *heap_pop(void) {
    struct connection *top = heap[0], *last = heap[--waiting];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < waiting) {
        if (child + 1 < waiting && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (heap[child]->due_ns >= last->due_ns) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    top->waits = 0;
    return top;
}

/* --- one connection --- */

static void close_connection(struct connection *c) {
    if (c->step != CLOSED) {
        close(c->fd);
        free(c->request);
        c->request = NULL;
        c->step = CLOSED;
    }
    if (!c->waits) free(c);
}

/* Writes the rest of a piece: 1 when it is out, 0 to try again later, -1 when the client is gone. */
static int put(struct connection *c, const char *piece, size_t length) {
    ssize_t n = send(c->fd, piece + c->sent, length - c->sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return -1;
    if (n > 0) c->sent += n;
    if (c->sent < length) return 0;
    c->sent = 0;
    return 1;
}

static int put_token(struct connection *c) {
    const struct piece *piece = &pieces[c->chat][c->written + 1 == c->tokens ? LAST : TOKEN];
    if (!c->sent) c->last_ns = now_ns();
    if (!c->written && !c->sent) c->first_ns = c->last_ns;
    return put(c, piece->bytes, piece->length);
}

static int put_usage(struct connection *c) {
    struct piece piece;
    format_event(&piece, c->chat ? CHAT USAGE : COMPLETION USAGE, 5600 + c->tokens, c->tokens);
    return put(c, piece.bytes, piece.length);
}

static void finish(struct connection *c) {
    if (recorded == record_room) records = grown(records, &record_room, recorded + 1, sizeof *records);
    records[recorded++] = (struct record){c->read_ns, c->first_ns, c->last_ns, c->tokens};
    c->step = READING;
}

/* Writes what is due; when more is to come, the connection waits in the heap again. */
static void advance(struct connection *c) {
    int wrote = 1;
    while (wrote == 1 && c->step != READING) {
        switch (c->step) {
        case ROLE_CHUNK: wrote = c->chat ? put(c, pieces[1][ROLE].bytes, pieces[1][ROLE].length) : 1; break;
        case TOKENS: wrote = put_token(c); break;
        case USAGE_CHUNK: wrote = put_usage(c); break;
        case DONE_CHUNK: wrote = put(c, done.bytes, done.length); break;
        case ENDING: wrote = put(c, END, sizeof END - 1); break;
        default: return;
        }
        if (wrote != 1) break;
        if (c->step == ENDING) {
            finish(c);
        } else if (c->step != TOKENS) {
            c->step++;
        } else if (++c->written == c->tokens) {
            c->step++;
        } else {
            c->due_ns += itl_ns;
            heap_push(c);
            return;
        }
    }
    if (wrote < 0) {
        close_connection(c);
    } else if (!wrote) {
        c->due_ns = now_ns() + RETRY_NS;
        heap_push(c);
    }
}

/* --- requests --- */

static int max_tokens(struct connection *c, size_t from) {
    const char *name = "\"max_tokens\":", *at = memmem(c->request + from, c->have - from, name, strlen(name));
    int asked = at ? atoi(at + strlen(name)) : 0;
    return asked > 0 ? asked : default_tokens;
}

/* Begins the answer to a whole request; its head goes out at once, as vLLM's does. 0: close. */
static int answer(struct connection *c, size_t body) {
    char reply[512];
    if (!strncmp(c->request, "GET /v1/models", 14)) {
        const char *head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        int n = snprintf(reply, sizeof reply, "%s %zu\r\n\r\n%s", head, sizeof MODELS - 1, MODELS);
        return put(c, reply, n) == 1;
    }
    if (!strncmp(c->request, "GET /health ", 12)) return put(c, HEALTHY, sizeof HEALTHY - 1) == 1;
    c->chat = !strncmp(c->request, "POST /v1/chat/completions", 25);
    if (!c->chat && strncmp(c->request, "POST /v1/completions", 20))
        return put(c, NOT_FOUND, sizeof NOT_FOUND - 1) == 1;
    c->tokens = max_tokens(c, body);
    c->written = 0;
    c->read_ns = now_ns();
    c->due_ns = c->read_ns + ttft_ns;
    c->step = ROLE_CHUNK;
    heap_push(c);
    return put(c, HEAD, sizeof HEAD - 1) == 1;
}

/* Answers the request in the buffer if it is whole; pipelining is not known. 0: close. */
static int take_request(struct connection *c) {
    c->request[c->have] = 0;
    char *end = strstr(c->request, "\r\n\r\n");
    if (!end) return c->have < REQUEST_BYTES_MAX;
    size_t body = end + 4 - c->request;
    char *length = strcasestr(c->request, "\r\ncontent-length:");
    size_t whole = body + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
    if (c->have < whole) return whole < REQUEST_BYTES_MAX;
    int going_on = answer(c, body);
    free(c->request);
    c->request = NULL;
    c->have = c->room = 0;
    return going_on;
}

static void readable(struct connection *c) {
    ssize_t n = 0; /* bytes in the middle of an answer are its end, too: the client gave up */
    if (c->step == READING) {
        if (c->room < c->have + 65536) c->request = grown(c->request, &c->room, c->have + 65536, 1);
        n = recv(c->fd, c->request + c->have, c->room - c->have - 1, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n > 0) c->have += n;
    }
    if (n <= 0 || !take_request(c)) close_connection(c);
}

static void accept_all(void) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = calloc(1, sizeof *c);
        if (!c) die("memory");
        c->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) die("accept (file limit?)");
}

/* --- the server --- */

static void stop(int signal) {
    (void)signal;
    stopped = 1;
}

static void options(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(words[i], "--ttft-ms")) ttft_ns = atof(words[i + 1]) * 1e6;
        else if (!strcmp(words[i], "--itl-ms")) itl_ns = atof(words[i + 1]) * 1e6;
        else if (!strcmp(words[i], "--tokens")) default_tokens = atoi(words[i + 1]);
        else if (!strcmp(words[i], "--log")) log_path = words[i + 1];
        else count = 0;
    }
    if (count % 2 == 0 || default_tokens < 1) {
        fprintf(stderr, "mock_sse [--ttft-ms 200] [--itl-ms 10] [--tokens 140] [--log FILE]\n");
        exit(2);
    }
}

static void start(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct sigaction action = {.sa_handler = stop}; /* without SA_RESTART: epoll_wait returns */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4096)) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (poller < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event)) die("epoll");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
}

static void write_log(void) {
    FILE *file = log_path ? fopen(log_path, "w") : NULL;
    if (log_path && !file) die(log_path);
    for (size_t i = 0; file && i < recorded; i++)
        fprintf(file, "%lld %lld %lld %d\n", (long long)records[i].read_ns, (long long)records[i].first_ns,
                (long long)records[i].last_ns, records[i].tokens);
    if (file && fclose(file)) die(log_path);
}

int main(int count, char **words) {
    struct epoll_event events[EVENTS];
    options(count, words);
    format_pieces();
    start();
    while (!stopped) {
        int64_t now = now_ns();
        while (waiting && heap[0]->due_ns <= now) {
            struct connection *c = heap_pop();
            if (c->step == CLOSED) free(c);
            else advance(c);
        }
        /* Rounded up to a whole ms: tokens due within it go out together, as an engine's step does. */
        int64_t wait_ns = waiting ? heap[0]->due_ns - now_ns() : 1000000000;
        int n = epoll_wait(poller, events, EVENTS, wait_ns <= 0 ? 0 : (int)((wait_ns + 999999) / 1000000));
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr) readable(events[i].data.ptr);
            else accept_all();
        }
    }
    write_log();
    return 0;
}
