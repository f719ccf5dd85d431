/* Parse the events of a chunk of a Kineto trace to columns.
 *
 * An event becomes a row of 64-bit integers: its fields, then a value for each of the arguments that the caller lists.
 * Strings and other JSON values become codes: their texts are returned as JSON arrays of the distinct ones. Whatever
 * is unusual makes the parser decline the chunk, and the caller reads it with msgspec instead. So what is accepted here
 * must be valid JSON, and must mean the same. */

#ifndef GPULAB_EVENT_COLUMNS_H
#define GPULAB_EVENT_COLUMNS_H

#include <stddef.h>

#include "distinct_texts.h"
#include "event_values.h"
#include "layout.h"

#define MAX_KEYS 64 /* arguments: one bit for each */
#define BUCKETS 256 /* of the hash table of their keys */
#define BLANK_ROWS 256 /* that are prepared at a time */
#define MISSING_TIME INT64_MIN

/* The fields of a row, and the scopes of events, with their names in Python. */
enum { SCOPE, START, DUR, DECIMALS, NAME, CATEGORY, PID, TID, FIELDS };
static const char *const field_names[FIELDS] = {"scope", "start", "dur", "decimals", "name", "cat", "pid", "tid"};
enum { WORK, MEMORY, LABEL, SCOPES, UNUSED = SCOPES };
static const char *const scope_names[SCOPES] = {"work", "memory", "label"};

enum { PHASE = FIELDS, ARGS, OTHER_MEMBER }; /* members of an event that are no fields of a row */

typedef struct {
    Slice name;
    char kind; /* of its value: c: count, a: signed amount, f: fraction, p: product of a list, t: text */
    int next;  /* the next key in the same bucket, or -1 */
} Key;

typedef struct {
    const char *end; /* of the text */
    bool is_exact;   /* times are rounded from their decimal digits, and not from float64 */
    Key keys[MAX_KEYS];
    int key_count, buckets[BUCKETS];
    uint64_t in_scope[SCOPES]; /* bits of the arguments that events of this scope have */
    uint64_t used_keys;        /* bits of the arguments that any row has */
    int64_t absent[MAX_KEYS];  /* values of an argument that an event lacks */
    int64_t *columns;          /* one after the other, each with space for as many rows as fit */
    size_t row_count, blank_count, row_capacity;
    bool is_full;
    Layout event_layout, argument_layout;
    Texts texts;
} Parser;

typedef struct {
    char phase;
    unsigned seen, odd; /* bits of its members: those it has, and those with an unusual value */
    uint64_t seen_keys, odd_keys; /* the same for its arguments */
    int64_t start, dur, decimals;
    Slice texts[TID + 1 - NAME];
    int64_t values[MAX_KEYS]; /* of the arguments that it has */
} Event;

static inline unsigned bucket_of(Slice key)
{
    return key.length ? ((unsigned char)key.text[0] * 7u + (unsigned char)key.text[key.length - 1] * 31u
                         + (unsigned)key.length * 13u) % BUCKETS : 0;
}

static inline int argument_of(const Parser *parser, Slice key)
{
    int index = parser->buckets[bucket_of(key)];
    while (index >= 0 && (parser->keys[index].name.length != key.length
                          || !is_equal(parser->keys[index].name.text, key.text, key.length)))
        index = parser->keys[index].next;
    return index;
}

static const char *parse_argument(Parser *parser, int index, const char *at, Event *event)
{
    const char *after;
    int64_t *value = &event->values[index];
    uint64_t bit = 1ULL << index;
    if (event->seen_keys & bit)
        return NULL;
    event->seen_keys |= bit;
    switch (parser->keys[index].kind) {
    case 'c':
        after = scan_count(at, parser->end, value);
        break;
    case 'a':
        after = scan_amount(at, parser->end, value);
        break;
    case 'p':
        after = scan_product(at, parser->end, value);
        break;
    case 'f':
        after = scan_fraction(at, parser->end, value);
        break;
    default:
        after = skip_value(at, parser->end);
        return after && intern(&parser->texts, FIELDS + index, (Slice){at, (size_t)(after - at)}, value) ? after : NULL;
    }
    if (after)
        return after;
    event->odd_keys |= bit;
    return skip_value(at, parser->end);
}

/* At the brace. */
static const char *parse_arguments(Parser *parser, const char *at, Event *event)
{
    const char *end = parser->end;
    Layout *layout = &parser->argument_layout;
    int step = 0;
    at = skip_space(at + 1, end);
    if (is_at(at, end, '}'))
        return at + 1;
    for (bool more;;) {
        at = next_value(layout, &step, at, end, &more);
        if (!at || !more)
            return at;
        int *member = &layout->steps[step].member;
        if (*member == UNKNOWN_MEMBER)
            *member = argument_of(parser, layout->steps[step].key);
        at = *member < 0 ? skip_value(at, end) : parse_argument(parser, *member, at, event);
        if (!at)
            return NULL;
    }
}

static inline bool is_text(Slice slice, const char *text, size_t length)
{
    return slice.length == length && memcmp(slice.text, text, length) == 0;
}

static inline int member_of(Slice key)
{
    switch (key.length) {
    case 2:
        return is_text(key, "ts", 2) ? START : is_text(key, "ph", 2) ? PHASE : OTHER_MEMBER;
    case 3:
        return is_text(key, "dur", 3)   ? DUR
            : is_text(key, "pid", 3) ? PID
            : is_text(key, "tid", 3) ? TID
            : is_text(key, "cat", 3) ? CATEGORY
                                     : OTHER_MEMBER;
    case 4:
        return is_text(key, "name", 4) ? NAME : is_text(key, "args", 4) ? ARGS : OTHER_MEMBER;
    default:
        return OTHER_MEMBER;
    }
}

static inline const char *parse_member(Parser *parser, int member, const char *at, Event *event)
{
    const char *end = parser->end, *after;
    Number number;
    switch (member) {
    case PHASE: /* a string of one letter */
        if (end - at < 3 || at[0] != '"' || at[2] != '"')
            return NULL;
        event->phase = at[1];
        return at + 3;
    case START:
    case DUR:
        if (!is_at(at, end, '-') && !(at < end && is_digit(*at)))
            break;
        after = scan_number(at, end, &number);
        if (after && !to_nanoseconds(&number, parser->is_exact, member == DUR ? &event->dur : &event->start))
            event->odd |= 1u << member;
        if (after)
            event->decimals |= (int64_t)number.decimals << (member == DUR ? 32 : 0);
        return after;
    case ARGS:
        if (is_at(at, end, '{'))
            return parse_arguments(parser, at, event);
        break;
    case OTHER_MEMBER:
        return skip_value(at, end);
    default:
        after = skip_value(at, end);
        event->texts[member - NAME] = (Slice){at, after ? (size_t)(after - at) : 0};
        return after;
    }
    event->odd |= 1u << member;
    return skip_value(at, end);
}

/* Whether msgspec, which decodes these values of instant events and metadata, would accept them. */
static inline bool is_ignorable(const Parser *parser, const Event *event)
{
    return is_plain(event->texts[0]) && is_plain(event->texts[PID - NAME]) && is_plain(event->texts[TID - NAME])
        && !(event->odd_keys & parser->in_scope[MEMORY]);
}

/* Whether an event of these fields counts, and for what; false if msgspec must decide that. */
static inline bool classify(const Parser *parser, const Event *event, int *scope)
{
    Slice name = event->texts[0];
    unsigned checked = 1u << ARGS;
    *scope = UNUSED;
    switch (event->phase) {
    case 'X':
        *scope = WORK;
        checked |= 1u << START | 1u << DUR;
        break;
    case 'i':
        checked |= 1u << START;
        if (is_text(name, "\"[memory]\"", 10))
            *scope = MEMORY;
        break;
    case 'M':
        if (is_text(name, "\"thread_name\"", 13))
            *scope = LABEL;
        break;
    default:
        return event->phase && strchr("BEICbnestfSTpFNODPvVRrc(),", event->phase);
    }
    return !(event->odd & checked) && (*scope != UNUSED || is_ignorable(parser, event));
}

static inline int lowest_bit(uint64_t bits)
{
#if defined(WITH_BUILTINS)
    return __builtin_ctzll(bits);
#else
    int index = 0;
    while (!(bits >> index & 1))
        index++;
    return index;
#endif
}

/* Make sure that there is a row for an event, with absent arguments. */
static bool prepare_rows(Parser *parser)
{
    if (parser->row_count < parser->blank_count)
        return true;
    size_t begin = parser->blank_count, end = begin + BLANK_ROWS;
    end = end < parser->row_capacity ? end : parser->row_capacity;
    parser->is_full = begin == end;
    for (int index = 0; index < parser->key_count; index++) {
        int64_t *column = parser->columns + (size_t)(FIELDS + index) * parser->row_capacity, absent = parser->absent[index];
        for (size_t row = begin; row < end; row++)
            column[row] = absent;
    }
    parser->blank_count = end;
    return !parser->is_full;
}

/* Write an event to the next row, if it counts. */
static inline bool finish_event(Parser *parser, const Event *event)
{
    int scope;
    if (!classify(parser, event, &scope))
        return false;
    if (scope == UNUSED)
        return true;
    if ((event->odd_keys & parser->in_scope[scope]) || !prepare_rows(parser))
        return false;
    size_t capacity = parser->row_capacity;
    int64_t *cell = parser->columns + parser->row_count++;
    cell[SCOPE * capacity] = scope;
    cell[START * capacity] = event->start;
    cell[DUR * capacity] = event->dur;
    cell[DECIMALS * capacity] = event->decimals;
    for (int field = scope == WORK ? NAME : PID; field <= TID; field++) {
        Slice text = event->texts[field - NAME];
        if (!intern(&parser->texts, field, text.length ? text : (Slice){"\"\"", 2}, &cell[(size_t)field * capacity]))
            return false;
    }
    uint64_t keys = event->seen_keys & parser->in_scope[scope];
    parser->used_keys |= keys;
    for (; keys; keys &= keys - 1) {
        int index = lowest_bit(keys);
        cell[(size_t)(FIELDS + index) * capacity] = event->values[index];
    }
    return true;
}

static const char *parse_event(Parser *parser, const char *at)
{
    const char *end = parser->end;
    Layout *layout = &parser->event_layout;
    Event event; /* its values are undefined until the event has them */
    int step = 0;
    memset(&event, 0, offsetof(Event, values));
    event.start = event.dur = MISSING_TIME;
    if (!is_at(at, end, '{'))
        return NULL;
    at++;
    for (bool more;;) {
        at = next_value(layout, &step, at, end, &more);
        if (!at || !more)
            break;
        int *member = &layout->steps[step].member;
        if (*member == UNKNOWN_MEMBER)
            *member = member_of(layout->steps[step].key);
        if (*member != OTHER_MEMBER && event.seen & 1u << *member)
            return NULL;
        event.seen |= 1u << *member;
        at = parse_member(parser, *member, at, &event);
        if (!at)
            break;
    }
    return at && finish_event(parser, &event) ? at : NULL;
}

/* Events up to the end of the text, or to the bracket after them. */
static const char *parse_events(Parser *parser, const char *at, bool has_bracket)
{
    const char *end = parser->end;
    for (;;) {
        at = parse_event(parser, skip_space(at, end));
        if (!at)
            return NULL;
        at = skip_space(at, end);
        if (at == end || *at == ']')
            return has_bracket == (at < end) ? at : NULL;
        if (*at++ != ',')
            return NULL;
    }
}

/* The arguments that events have, each as the letter of its kind, the digit of its scope, the length of its name in one
 * byte, and its name. */
static bool read_keys(Parser *parser, const char *at, const char *end)
{
    double absent = -1;
    memset(parser->buckets, -1, sizeof parser->buckets);
    for (; end - at > 3; parser->key_count++) {
        int index = parser->key_count, scope = at[1] - '0';
        size_t length = (unsigned char)at[2];
        if (index == MAX_KEYS || scope < 0 || scope >= SCOPES || !length || (size_t)(end - at) < 3 + length)
            return false;
        Slice name = {at + 3, length};
        int *bucket = &parser->buckets[bucket_of(name)];
        parser->keys[index] = (Key){name, at[0], *bucket};
        *bucket = index;
        parser->in_scope[scope] |= 1ULL << index;
        parser->absent[index] = -1;
        if (at[0] == 'f')
            memcpy(&parser->absent[index], &absent, sizeof absent);
        at += 3 + length;
    }
    return at == end;
}

#endif
