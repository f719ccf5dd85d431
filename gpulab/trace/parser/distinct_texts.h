/* A hash table of distinct texts. Texts of several spaces share it; in each space they are numbered from 0, in order of
 * first appearance. */

#ifndef GPULAB_DISTINCT_TEXTS_H
#define GPULAB_DISTINCT_TEXTS_H

#include "json_scan.h"

#define MAX_SPACES 80
#define MAX_PROBES 64 /* of the table for one text; more of them are an attack */
#define FIRST_CAPACITY 1024

typedef struct {
    Slice slice;
    uint64_t hash;
    int space;
    int64_t code;
} Entry;

typedef struct {
    Entry *entries;
    size_t count, capacity;
    uint32_t *table; /* 1 + the index of an entry, by hash; twice as long as the capacity, which is a power of two */
    int64_t code_count[MAX_SPACES];
    size_t latest[MAX_SPACES]; /* 1 + the index of the entry that was used last */
    size_t text_bytes[MAX_SPACES]; /* of all texts of the space */
} Texts;

static inline uint64_t mixed(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0xFF51AFD7ED558CCDULL;
    return hash ^ hash >> 32;
}

static inline uint64_t hash_of(Slice slice, int space)
{
    uint64_t hash = slice.length * 0x9E3779B97F4A7C15ULL + (unsigned)space;
    if (slice.length < 8)
        return mixed(hash, short_word(slice.text, slice.length));
    for (size_t index = 0; index < slice.length - 8; index += 8)
        hash = mixed(hash, word_at(slice.text + index));
    return mixed(hash, word_at(slice.text + slice.length - 8));
}

static inline bool grow_texts(Texts *texts)
{
    size_t capacity = texts->capacity ? texts->capacity * 2 : FIRST_CAPACITY, mask = capacity * 2 - 1;
    Entry *entries = realloc(texts->entries, capacity * sizeof *entries);
    if (!entries)
        return false;
    texts->entries = entries;
    uint32_t *table = calloc(mask + 1, sizeof *table);
    if (!table)
        return false;
    for (size_t index = 0; index < texts->count; index++) {
        size_t slot = entries[index].hash & mask;
        while (table[slot])
            slot = (slot + 1) & mask;
        table[slot] = (uint32_t)(index + 1);
    }
    free(texts->table);
    texts->table = table;
    texts->capacity = capacity;
    return true;
}

static inline bool is_same(const Entry *entry, int space, Slice slice)
{
    return entry->space == space && entry->slice.length == slice.length
        && is_equal(entry->slice.text, slice.text, slice.length);
}

/* Store the code of a text, which must live as long as the table. False if there is no memory for it. */
static inline bool intern(Texts *texts, int space, Slice slice, int64_t *code)
{
    size_t latest = texts->latest[space]; /* most values are the same as that of the event before */
    if (latest && is_same(&texts->entries[latest - 1], space, slice)) {
        *code = texts->entries[latest - 1].code;
        return true;
    }
    if (texts->count == texts->capacity && !grow_texts(texts))
        return false;
    uint64_t hash = hash_of(slice, space);
    size_t mask = texts->capacity * 2 - 1, slot = hash & mask;
    for (int probes = 0; texts->table[slot]; slot = (slot + 1) & mask) {
        const Entry *entry = &texts->entries[texts->table[slot] - 1];
        if (entry->hash == hash && is_same(entry, space, slice)) {
            texts->latest[space] = texts->table[slot];
            *code = entry->code;
            return true;
        }
        if (++probes > MAX_PROBES)
            return false;
    }
    *code = texts->code_count[space]++;
    texts->text_bytes[space] += slice.length;
    texts->entries[texts->count++] = (Entry){slice, hash, space, *code};
    texts->table[slot] = (uint32_t)texts->count;
    texts->latest[space] = texts->count;
    return true;
}

#endif
