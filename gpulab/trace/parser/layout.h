/* Scan the text between the values of an object: comma, key, colon and white space.
 *
 * Most events are laid out like an earlier one. So the texts after a value are kept as a tree, each with the key that it
 * leads to: a text that is found there has been validated, and is compared instead of scanned. */

#ifndef GPULAB_LAYOUT_H
#define GPULAB_LAYOUT_H

#include "json_scan.h"

#define MAX_STEPS 512 /* that are kept; later ones are scanned */
#define MAX_TRIES 8   /* of texts after the same value */
#define UNKNOWN_MEMBER INT32_MIN

typedef struct {
    Slice text;         /* from the value before, or from the brace, to the value */
    Slice key;
    int member;         /* what the key means to the caller, which sets it */
    int child, sibling; /* the text that may follow, and another one that may be here; 0: none */
} Step;

typedef struct {
    int count;                 /* of steps */
    Step steps[MAX_STEPS + 1]; /* the first one is the beginning of an object, the last one is used if there are more */
} Layout;

/* The step with the text at this place, and the place behind it; NULL if there is none. */
static inline const char *follow(Layout *layout, int *step, const char *at, const char *end)
{
    Step *steps = layout->steps;
    int *link = &steps[*step].child, index = *link;
    for (int tries = 0; index && tries < MAX_TRIES; tries++, link = &steps[index].sibling, index = *link) {
        Slice text = steps[index].text;
        if ((size_t)(end - at) <= text.length || !is_equal(at, text.text, text.length)
            || (unsigned char)at[text.length] <= ' ')
            continue;
        if (tries) { /* it becomes the first of its siblings */
            *link = steps[index].sibling;
            steps[index].sibling = steps[*step].child;
            steps[*step].child = index;
        }
        *step = index;
        return at + text.length;
    }
    return NULL;
}

/* From behind a value, or behind the brace of an object where *step is 0, to the next value; from the last one (then not
 * *more) to behind the closing brace. */
static inline const char *next_value(Layout *layout, int *step, const char *at, const char *end, bool *more)
{
    const char *start = at, *after = follow(layout, step, at, end);
    Slice key;
    *more = true;
    if (after)
        return after;
    at = *step ? scan_separator(at, end, '}', more) : skip_space(at, end);
    if (!at || !*more)
        return at;
    at = scan_key(at, end, &key);
    if (!at)
        return NULL;
    int previous = *step, index = layout->count < MAX_STEPS - 1 ? ++layout->count : MAX_STEPS;
    Step *steps = layout->steps;
    steps[index] = (Step){{start, (size_t)(at - start)}, key, UNKNOWN_MEMBER, 0, 0};
    if (index < MAX_STEPS && previous < MAX_STEPS) {
        steps[index].sibling = steps[previous].child;
        steps[previous].child = index;
    }
    *step = index;
    return at;
}

#endif
