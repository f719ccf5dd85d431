/* Scan JSON text: white space, strings, numbers and whole values, which are validated and not decoded.
 *
 * A scanning function takes the place where it begins and the end of the text, which it never reads at or behind, and
 * returns the place behind what it scanned: NULL if that is not valid JSON, or too unusual to be worth code here. */

#ifndef GPULAB_JSON_SCAN_H
#define GPULAB_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What only some compilers and processors have. A test compiles without it, and compares the results. */
#if !defined(GPULAB_PORTABLE) && defined(__GNUC__)
#define WITH_BUILTINS
#endif

#if defined(WITH_BUILTINS) && defined(__SSE2__)
#define WITH_SSE2
#include <emmintrin.h>
#endif

#if defined(WITH_BUILTINS) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define WORD_TRICKS /* eight letters at a time, the first one in the lowest byte */
#endif

#define MAX_DEPTH 64      /* of nested values: one bit for each level */
#define MAX_DIGITS 19     /* of a number that fits in 64 bits */
#define LONGEST_PLAIN 1000 /* characters of a value; Python refuses integers of more than 4300 digits */
#define LONGEST_NUMBER 63 /* characters of a number that is converted by strtod */
#define EXACT_MANTISSA (1ULL << 53) /* float64 holds all integers up to this one */
#define EVERY_BYTE 0x0101010101010101ULL

typedef struct {
    const char *text;
    size_t length;
} Slice;

typedef struct {
    Slice slice;       /* the number as it is written */
    uint64_t mantissa; /* all digits, without the point */
    int decimals;      /* digits after the point */
    bool is_negative;
    bool is_usual; /* without an exponent, and the mantissa fits */
} Number;

static inline bool is_digit(char letter)
{
    return letter >= '0' && letter <= '9';
}

static inline bool is_at(const char *at, const char *end, char letter)
{
    return at < end && *at == letter;
}

static inline uint64_t word_at(const char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Fewer than eight letters as an integer, which is different for different letters. */
static inline uint64_t short_word(const char *at, size_t length)
{
    uint32_t first, last;
    if (length < 4)
        return length ? (unsigned char)at[0] | (unsigned)(unsigned char)at[length / 2] << 8
                | (unsigned)(unsigned char)at[length - 1] << 16
                      : 0;
    memcpy(&first, at, sizeof first);
    memcpy(&last, at + length - sizeof last, sizeof last);
    return (uint64_t)first << 32 | last;
}

static inline bool is_equal(const char *one, const char *other, size_t length)
{
    if (length < 8)
        return short_word(one, length) == short_word(other, length);
    for (size_t index = 0; index < length - 8; index += 8)
        if (word_at(one + index) != word_at(other + index))
            return false;
    return word_at(one + length - 8) == word_at(other + length - 8);
}

static const char *skip_more_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
#if defined(WITH_SSE2)
        if (end - at >= 16) { /* the indentation of a line */
            __m128i spaces = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)at), _mm_set1_epi8(' '));
            at += __builtin_ctz(~(unsigned)_mm_movemask_epi8(spaces));
        }
#endif
    }
    return at;
}

static inline const char *skip_space(const char *at, const char *end)
{
    if (at < end && (unsigned char)*at > ' ')
        return at;
    if (end - at > 1 && *at == ' ' && (unsigned char)at[1] > ' ')
        return at + 1;
    return skip_more_space(at, end);
}

/* The first quote, backslash or control character; `end` if there is none. */
static inline const char *special_character(const char *at, const char *end)
{
#if defined(WITH_SSE2)
    for (; end - at >= 16; at += 16) {
        __m128i letters = _mm_loadu_si128((const __m128i *)at), control = _mm_set1_epi8(0x1F);
        __m128i hits = _mm_or_si128(_mm_cmpeq_epi8(letters, _mm_set1_epi8('"')),
                                    _mm_cmpeq_epi8(letters, _mm_set1_epi8('\\')));
        hits = _mm_or_si128(hits, _mm_cmpeq_epi8(_mm_max_epu8(letters, control), control));
        int bits = _mm_movemask_epi8(hits);
        if (bits)
            return at + __builtin_ctz((unsigned)bits);
    }
#elif defined(WORD_TRICKS)
    for (; end - at >= 8; at += 8) {
        uint64_t word = word_at(at), quotes = word ^ EVERY_BYTE * '"', backslashes = word ^ EVERY_BYTE * '\\';
        /* The high bit of a byte: whether it is zero after the xor, or below a space. Only bytes after the first one
         * may be wrong, because of carries. */
        uint64_t hits = ((quotes - EVERY_BYTE) & ~quotes) | ((backslashes - EVERY_BYTE) & ~backslashes)
            | ((word - EVERY_BYTE * ' ') & ~word);
        hits &= EVERY_BYTE * 0x80;
        if (hits)
            return at + (__builtin_ctzll(hits) >> 3);
    }
#endif
    while (at < end && *at != '"' && *at != '\\' && (unsigned char)*at >= ' ')
        at++;
    return at;
}

/* At a backslash. Surrogates are refused: their pairs have rules of their own, and they are rare. */
static inline const char *skip_escape(const char *at, const char *end)
{
    if (end - at < 2)
        return NULL;
    if (at[1] != 'u')
        return at[1] && strchr("\"\\/bfnrt", at[1]) ? at + 2 : NULL;
    if (end - at < 6)
        return NULL;
    for (int index = 2; index < 6; index++)
        if (!is_digit(at[index]) && !((at[index] | 32) >= 'a' && (at[index] | 32) <= 'f'))
            return NULL;
    return (at[2] | 32) == 'd' && at[3] >= '8' ? NULL : at + 6;
}

/* At the opening quote. */
static inline const char *skip_string(const char *at, const char *end, bool *has_escape)
{
    *has_escape = false;
    for (at++;;) {
        at = special_character(at, end);
        if (at >= end)
            return NULL;
        if (*at == '"')
            return at + 1;
        *has_escape = true;
        if (*at != '\\' || !(at = skip_escape(at, end)))
            return NULL;
    }
}

/* The value of eight digits in a little-endian word: of pairs of them, then of fours, then of all. */
static inline uint64_t eight_digits(uint64_t word)
{
    word -= EVERY_BYTE * '0';
    word = (word * 10 + (word >> 8)) & 0x00FF00FF00FF00FF;
    word = (word * 100 + (word >> 16)) & 0x0000FFFF0000FFFF;
    return (uint32_t)(word * 10000 + (word >> 32));
}

/* Digits, whose value is appended to the digits of a number. It may overflow: the caller counts them. */
static inline const char *skip_digits(const char *at, const char *end, uint64_t *number)
{
#ifdef WORD_TRICKS
    static const uint64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    for (; end - at >= 8; at += 8) {
        uint64_t word = word_at(at);
        /* Of a letter and of the letter plus 6, the high half is 3 only for digits. Only letters after the first other
         * one may be wrong, because of carries. */
        uint64_t others = ((word & EVERY_BYTE * 0xF0) ^ EVERY_BYTE * 0x30)
            | (((word + EVERY_BYTE * 6) & EVERY_BYTE * 0xF0) ^ EVERY_BYTE * 0x30);
        if (others) {
            int count = __builtin_ctzll(others) >> 3;
            if (count)
                word = word << (64 - 8 * count) | (EVERY_BYTE * '0') >> 8 * count;
            *number = *number * powers[count] + (count ? eight_digits(word) : 0);
            return at + count;
        }
        *number = *number * 100000000 + eight_digits(word);
    }
#endif
    for (; at < end && is_digit(*at); at++)
        *number = *number * 10 + (uint64_t)(*at - '0');
    return at;
}

static inline const char *scan_number(const char *start, const char *end, Number *number)
{
    bool is_negative = is_at(start, end, '-');
    const char *digits = start + is_negative, *at;
    uint64_t mantissa = 0, exponent = 0;
    int64_t decimals = 0;
    at = skip_digits(digits, end, &mantissa);
    if (at == digits || (*digits == '0' && at - digits > 1))
        return NULL;
    int64_t count = *digits == '0' ? 0 : at - digits;
    if (is_at(at, end, '.')) {
        const char *first = at + 1;
        at = skip_digits(first, end, &mantissa);
        decimals = at - first;
        if (!decimals)
            return NULL;
    }
    bool is_usual = count + decimals <= MAX_DIGITS;
    if (at < end && (*at | 32) == 'e') {
        at++;
        const char *first = at + (is_at(at, end, '+') || is_at(at, end, '-'));
        at = skip_digits(first, end, &exponent);
        if (at == first)
            return NULL;
        is_usual = false;
    }
    *number = (Number){{start, (size_t)(at - start)}, mantissa, is_usual ? (int)decimals : 0, is_negative, is_usual};
    return at;
}

/* Digits, at least one. */
static inline const char *skip_some_digits(const char *at, const char *end)
{
    uint64_t ignored = 0;
    const char *after = skip_digits(at, end, &ignored);
    return after > at ? after : NULL;
}

static inline const char *skip_number(const char *at, const char *end)
{
    at += is_at(at, end, '-');
    const char *digits = at;
    at = skip_some_digits(at, end);
    if (!at || (*digits == '0' && at - digits > 1))
        return NULL;
    if (is_at(at, end, '.') && !(at = skip_some_digits(at + 1, end)))
        return NULL;
    if (at == end || (*at | 32) != 'e')
        return at;
    at++;
    return skip_some_digits(at + (is_at(at, end, '+') || is_at(at, end, '-')), end);
}

static inline const char *skip_word(const char *at, const char *end, const char *word, size_t length)
{
    return (size_t)(end - at) < length || memcmp(at, word, length) != 0 ? NULL : at + length;
}

/* A string, a number or a word. */
static inline const char *skip_scalar(const char *at, const char *end)
{
    bool has_escape;
    if (at >= end)
        return NULL;
    switch (*at) {
    case '"':
        return skip_string(at, end, &has_escape);
    case 't':
        return skip_word(at, end, "true", 4);
    case 'f':
        return skip_word(at, end, "false", 5);
    case 'n':
        return skip_word(at, end, "null", 4);
    default:
        return skip_number(at, end);
    }
}

/* A key, with the colon behind it and the white space behind that; `key` is the text between its quotes. Escapes in it
 * are refused: they could spell any key. */
static inline const char *scan_key(const char *at, const char *end, Slice *key)
{
    bool has_escape;
    if (!is_at(at, end, '"'))
        return NULL;
    key->text = at + 1;
    at = skip_string(at, end, &has_escape);
    if (!at || has_escape)
        return NULL;
    key->length = (size_t)(at - 1 - key->text);
    if (!is_at(at, end, ':'))
        at = skip_space(at, end);
    return is_at(at, end, ':') ? skip_space(at + 1, end) : NULL;
}

/* After a value in an object or array: its comma (then *more) with the white space behind it, or the bracket that closes
 * it. */
static inline const char *scan_separator(const char *at, const char *end, char closing, bool *more)
{
    if (!is_at(at, end, ','))
        at = skip_space(at, end);
    *more = is_at(at, end, ',');
    if (*more)
        return skip_space(at + 1, end);
    return is_at(at, end, closing) ? at + 1 : NULL;
}

/* An object or array, of at most MAX_DEPTH levels. */
static const char *skip_nested(const char *at, const char *end)
{
    uint64_t objects = 0; /* the bit of each open level: whether it is an object */
    int depth = 0;
    Slice key;
    for (;;) {
        bool more = is_at(at, end, '{') || is_at(at, end, '[');
        if (more) {
            if (depth++ == MAX_DEPTH)
                return NULL;
            objects = objects << 1 | (*at == '{');
            at = skip_space(at + 1, end);
            more = !is_at(at, end, objects & 1 ? '}' : ']');
            if (!more) {
                at++;
                objects >>= 1;
                depth--;
            }
        } else {
            at = skip_scalar(at, end);
        }
        while (at && !more && depth) {
            at = scan_separator(at, end, objects & 1 ? '}' : ']', &more);
            objects >>= !more;
            depth -= !more;
        }
        if (at && depth && (objects & 1))
            at = scan_key(at, end, &key);
        if (!at || !depth)
            return at;
    }
}

static inline const char *skip_value(const char *at, const char *end)
{
    return is_at(at, end, '{') || is_at(at, end, '[') ? skip_nested(at, end) : skip_scalar(at, end);
}

/* Whether the decoder is sure to accept a value that has been skipped: no escapes, and no bytes that may not be UTF-8. */
static inline bool is_plain(Slice slice)
{
    bool plain = slice.length <= LONGEST_PLAIN;
    for (size_t index = 0; plain && index < slice.length; index++)
        plain = (unsigned char)slice.text[index] < 0x80 && slice.text[index] != '\\';
    return plain;
}

/* The number as float64, correctly rounded. */
static inline bool to_double(const Number *number, double *value)
{
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,
                                    1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19};
    if (number->is_usual && number->mantissa <= EXACT_MANTISSA) {
        *value = (double)number->mantissa / powers[number->decimals]; /* both are exact, so it is rounded once */
        *value = number->is_negative ? -*value : *value;
        return true;
    }
    char copy[LONGEST_NUMBER + 1], *end;
    if (number->slice.length > LONGEST_NUMBER)
        return false;
    memcpy(copy, number->slice.text, number->slice.length);
    copy[number->slice.length] = '\0';
    *value = strtod(copy, &end);
    return end == copy + number->slice.length; /* not in a locale with a decimal comma */
}

#endif
