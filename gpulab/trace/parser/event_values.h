/* Scan the values of events that become numbers, as times.py and arguments.py convert them. NULL: an unusual value. */

#ifndef GPULAB_EVENT_VALUES_H
#define GPULAB_EVENT_VALUES_H

#include "json_scan.h"

#define LARGEST_NS ((1ULL << 62) - 1)
#define LARGEST_WHOLE_US ((1ULL << 62) / 1000 - 1)
#define EXACT_BELOW_US 8796093022208.0 /* 2**43: float64 holds microseconds below it exactly to the nanosecond */

/* Microseconds as integer nanoseconds, rounded half to even from float64, as numpy does it. */
static bool round_double(const Number *number, int64_t *ns)
{
    double us, fraction;
    if (!to_double(number, &us) || us >= EXACT_BELOW_US || us <= -EXACT_BELOW_US)
        return false;
    int64_t floor = (int64_t)us, rest;
    floor -= (double)floor > us;
    fraction = (us - (double)floor) * 1000;
    rest = (int64_t)fraction;
    fraction -= (double)rest;
    *ns = floor * 1000 + rest + (fraction > 0.5 || (fraction == 0.5 && rest % 2));
    return true;
}

/* The same from the decimal digits, if `is_exact`: float64 gives another result only with more than three of them. */
static inline bool to_nanoseconds(const Number *number, bool is_exact, int64_t *ns)
{
    static const uint64_t powers[] = {1000, 100, 10, 1};
    uint64_t value = number->mantissa;
    if (!number->is_usual || (!number->decimals && value > LARGEST_WHOLE_US))
        return false;
    if (number->decimals <= 3) {
        uint64_t factor = powers[number->decimals];
        if (value > LARGEST_NS / factor)
            return false;
        value *= factor;
    } else if (is_exact) {
        uint64_t divisor = 1, rest;
        for (int decimals = number->decimals; decimals > 3; decimals--)
            divisor *= 10;
        rest = value % divisor;
        value /= divisor;
        value += rest * 2 > divisor || (rest * 2 == divisor && value % 2);
    } else {
        return round_double(number, ns);
    }
    *ns = number->is_negative ? -(int64_t)value : (int64_t)value;
    return value <= LARGEST_NS;
}

/* An integer. */
static inline const char *scan_amount(const char *at, const char *end, int64_t *amount)
{
    Number number;
    const char *after = scan_number(at, end, &number);
    if (!after || !number.is_usual || number.decimals || number.mantissa > INT64_MAX)
        return NULL;
    *amount = number.is_negative ? -(int64_t)number.mantissa : (int64_t)number.mantissa;
    return after;
}

/* A count or an identifier: an integer, or a text of digits. Other texts with a letter, as AMD's stream "0x0", are none,
 * which is -1. */
static inline const char *scan_count(const char *at, const char *end, int64_t *count)
{
    if (!is_at(at, end, '"'))
        return scan_amount(at, end, count);
    uint64_t value = 0;
    bool has_escape, has_letter = false;
    const char *digits_end = skip_digits(at + 1, end, &value), *after = skip_string(at, end, &has_escape);
    if (!after || has_escape || !is_plain((Slice){at, (size_t)(after - at)}))
        return NULL;
    for (const char *letter = digits_end; letter < after; letter++)
        has_letter |= (*letter | 32) >= 'a' && (*letter | 32) <= 'z';
    *count = has_letter ? -1 : (int64_t)value;
    return has_letter || (digits_end == after - 1 && after - at > 2 && after - at <= MAX_DIGITS) ? after : NULL;
}

/* The product of the sides of a grid or block; -1 if it is unusable. */
static inline const char *scan_product(const char *at, const char *end, int64_t *product)
{
    int64_t side, total = 1;
    bool more = true;
    *product = -1;
    if (is_at(at, end, '"')) { /* Triton writes "grid(1,)" */
        const char *after = skip_string(at, end, &more);
        return after && is_plain((Slice){at, (size_t)(after - at)}) ? after : NULL;
    }
    if (!is_at(at, end, '['))
        return NULL;
    at = skip_space(at + 1, end);
    for (int count = 1; more; count++) {
        at = scan_amount(at, end, &side);
        if (!at || !(at = scan_separator(at, end, ']', &more)))
            return NULL;
        if (count > 3 || side <= 0 || side >= 1LL << 32 || total < 0 || side > ((1LL << 62) - 1) / total)
            total = -1;
        else
            total *= side;
    }
    *product = total;
    return at;
}

/* A fraction as the bits of a float64. */
static inline const char *scan_fraction(const char *at, const char *end, int64_t *bits)
{
    Number number;
    double value;
    at = scan_number(at, end, &number);
    if (!at || !number.is_usual || !to_double(&number, &value))
        return NULL;
    memcpy(bits, &value, sizeof value);
    return at;
}

#endif
