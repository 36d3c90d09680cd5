/* The body of a CLASSES frame, as weights/codec/exponent_classes.py describes it: the same bytes, the same refusals, faster.

   Built once for each level of the processor (generic, AVX2, AVX-512); weights/codec/native/__init__.py loads the best.
   Plain C99 without Python's headers. No state, and no memory but the caller's; every length is checked before memory
   is touched.

   Elements are scanned in pieces that fit a near cache, 64 to a block. The class of an element has four bits. Each of
   them is a plane of 64 bits a block; the 16 classes are the 16 conjunctions of planes and inverted planes, and ranks
   are counts of ones. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define CLASSES 16
#define MAX_K 24
#define MAX_ELIAS 3
#define BLOCKS 128 /* a power of two */
#define PIECE (64 * BLOCKS)
#define CHUNK 1023
#define AHEAD 4096        /* elements that decoding looks ahead; this and the next two: measured */
#define AHEAD_OF_TWO 1536 /* and encoding, which reads two streams */
#define LATER 64          /* changes */
#define END 0xFFFFFFFFu

enum { ROOM = -1, HEADS = -2, CODES = -3, FIELDS = -4, RANK = -5, STEP = -6, DENSE = -7 };

/* -- the caller's memory ------------------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *at, *end;
} Arena;

/* `bytes` of it, of any content, on a cache line; NULL if there are not so many left. */
static void *take(Arena *from, uint64_t bytes) {
    uint8_t *at = (uint8_t *)(((uintptr_t)from->at + 63) & ~(uintptr_t)63);
    if (at > from->end || bytes > (uint64_t)(from->end - at)) return NULL;
    from->at = at + bytes;
    return at;
}

/* -- blocks of 64 ------------------------------------------------------------------------------------------------- */

static inline uint64_t below(int bit) { return (1ull << bit) - 1; }
static inline int ones(uint64_t word) { return __builtin_popcountll(word); }
/* The place of a 16-bit float among all, by value, and back: a negative one has its lower bits inverted. */
static inline int32_t place(uint16_t bits) { return (int16_t)(bits ^ (((int16_t)bits >> 15) & 0x7FFF)); }
static inline uint16_t from_place(int32_t place) { return (uint16_t)(place ^ ((place >> 31) & 0x7FFF)); }

typedef struct {
    int shift, mask, lo;
} Layout;

static inline int class_of(const Layout *layout, uint16_t word) {
    int exponent = ((word >> layout->shift) & layout->mask) - layout->lo;
    return exponent < 0 ? 0 : exponent < CLASSES - 1 ? exponent : CLASSES - 1;
}

/* Of 64 elements: who is of which class, and how many there are after them, if so many were `before`. */
#if defined(__AVX512VBMI2__) && defined(__AVX512VPOPCNTDQ__) && defined(__GFNI__)
/* What stands before a block, of each class: in a register, since a row in memory is slow to read so soon after it
   was written. */
typedef __m512i Before;
INLINE Before begin_scan(const uint32_t *before) { return _mm512_loadu_si512(before); }
INLINE void scan64(const Layout *layout, const uint16_t *old, uint64_t *members, Before *before, uint32_t *after) {
    /* Bytes in groups of eight, the last first: the product below reads the rows of a matrix from the last on. */
    static const uint8_t low_bytes[64] = {
        14, 12, 10, 8, 6, 4, 2, 0, 30, 28, 26, 24, 22, 20, 18, 16, 46, 44, 42, 40, 38, 36, 34, 32, 62, 60, 58, 56, 54, 52, 50, 48,
        78, 76, 74, 72, 70, 68, 66, 64, 94, 92, 90, 88, 86, 84, 82, 80, 110, 108, 106, 104, 102, 100, 98, 96, 126, 124, 122, 120, 118, 116, 114, 112,
    }, columns[64] = {
        0, 8, 16, 24, 32, 40, 48, 56, 1, 9, 17, 25, 33, 41, 49, 57, 2, 10, 18, 26, 34, 42, 50, 58, 3, 11, 19, 27, 35, 43, 51, 59,
        4, 12, 20, 28, 36, 44, 52, 60, 5, 13, 21, 29, 37, 45, 53, 61, 6, 14, 22, 30, 38, 46, 54, 62, 7, 15, 23, 31, 39, 47, 55, 63,
    };
    static const uint64_t bit0[8] = {4, 0, 4, 0, 4, 0, 4, 0}, bit1[8] = {5, 5, 1, 1, 5, 5, 1, 1}, bit2[8] = {6, 6, 6, 6, 2, 2, 2, 2};
    static const uint32_t evens[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    const __m128i by = _mm_cvtsi32_si128(layout->shift);
    __m512i a = _mm512_srl_epi16(_mm512_loadu_si512(old), by), b = _mm512_srl_epi16(_mm512_loadu_si512(old + 32), by);
    __m512i bytes = _mm512_permutex2var_epi8(a, _mm512_loadu_si512(low_bytes), b);
    bytes = _mm512_and_si512(bytes, _mm512_set1_epi8((char)layout->mask));
    bytes = _mm512_min_epu8(_mm512_subs_epu8(bytes, _mm512_set1_epi8((char)layout->lo)), _mm512_set1_epi8(15));
    /* Byte b of each group becomes bit b of its eight elements; then plane b, and (4 + b) its inverse. */
    __m512i planes = _mm512_gf2p8affine_epi64_epi8(_mm512_set1_epi64(0x0804020108040201), bytes, 0);
    planes = _mm512_permutexvar_epi8(_mm512_loadu_si512(columns), planes);
    planes = _mm512_xor_si512(planes, _mm512_set_epi64(-1, -1, -1, -1, 0, 0, 0, 0));
    __m512i x = _mm512_permutexvar_epi64(_mm512_loadu_si512(bit0), planes);
    __m512i y = _mm512_permutexvar_epi64(_mm512_loadu_si512(bit1), planes);
    __m512i z = _mm512_permutexvar_epi64(_mm512_loadu_si512(bit2), planes);
    __m512i top = _mm512_permutexvar_epi64(_mm512_set1_epi64(3), planes);
    __m512i both = _mm512_ternarylogic_epi64(x, y, z, 0x80);
    __m512i low = _mm512_andnot_si512(top, both), high = _mm512_and_si512(top, both);
    _mm512_storeu_si512(members, low), _mm512_storeu_si512(members + 8, high);
    __m512i counts = _mm512_permutex2var_epi32(
        _mm512_popcnt_epi64(low), _mm512_loadu_si512(evens), _mm512_popcnt_epi64(high));
    *before = _mm512_add_epi32(*before, counts);
    _mm512_storeu_si512(after, *before);
}
#else
#if defined(__AVX2__)
INLINE void planes64(const Layout *layout, const uint16_t *old, uint64_t *planes) {
    const __m128i by = _mm_cvtsi32_si128(layout->shift);
    const __m256i mask = _mm256_set1_epi16((short)layout->mask), lo = _mm256_set1_epi8((char)layout->lo);
    memset(planes, 0, 4 * sizeof *planes);
    for (int half = 0; half < 2; half++) {
        const __m256i *at = (const __m256i *)(old + 32 * half);
        __m256i a = _mm256_and_si256(_mm256_srl_epi16(_mm256_loadu_si256(at), by), mask);
        __m256i b = _mm256_and_si256(_mm256_srl_epi16(_mm256_loadu_si256(at + 1), by), mask);
        __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xD8);
        bytes = _mm256_min_epu8(_mm256_subs_epu8(bytes, lo), _mm256_set1_epi8(15));
        planes[0] |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7)) << (32 * half);
        planes[1] |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(bytes, 6)) << (32 * half);
        planes[2] |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(bytes, 5)) << (32 * half);
        planes[3] |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(bytes, 4)) << (32 * half);
    }
}
#else
INLINE void planes64(const Layout *layout, const uint16_t *old, uint64_t *planes) {
    memset(planes, 0, 4 * sizeof *planes);
    for (int i = 0; i < 64; i += 8) {
        uint64_t eight = 0;
        for (int j = 0; j < 8; j++) eight |= (uint64_t)class_of(layout, old[i + j]) << (8 * j);
        for (int b = 0; b < 4; b++)
            planes[b] |= ((eight >> b & 0x0101010101010101ull) * 0x0102040810204080ull >> 56) << i;
    }
}
#endif
typedef const uint32_t *Before;
INLINE Before begin_scan(const uint32_t *before) { return before; }
INLINE void scan64(const Layout *layout, const uint16_t *old, uint64_t *members, Before *before, uint32_t *after) {
    uint64_t p[4];
    planes64(layout, old, p);
    const uint64_t low[4] = {~p[0] & ~p[1], p[0] & ~p[1], ~p[0] & p[1], p[0] & p[1]};
    const uint64_t high[4] = {~p[2] & ~p[3], p[2] & ~p[3], ~p[2] & p[3], p[2] & p[3]};
    for (int c = 0; c < CLASSES; c++) {
        members[c] = low[c & 3] & high[c >> 2];
        after[c] = (*before)[c] + (uint32_t)ones(members[c]);
    }
    *before = after;
}
#endif

#if defined(__AVX512VBMI2__) && defined(__AVX512BW__)
INLINE uint64_t differ64(const uint16_t *a, const uint16_t *b) {
    uint64_t low = _mm512_cmpneq_epu16_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b));
    return low | (uint64_t)_mm512_cmpneq_epu16_mask(_mm512_loadu_si512(a + 32), _mm512_loadu_si512(b + 32)) << 32;
}
/* Numbers from `base` on where the mask has ones; up to 64 are written. */
INLINE void places64(uint64_t mask, int base, uint16_t *places) {
    static const uint16_t first[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                       16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    __m512i low = _mm512_add_epi16(_mm512_loadu_si512(first), _mm512_set1_epi16((short)base));
    __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(32));
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi16((uint32_t)mask, low));
    places += __builtin_popcount((uint32_t)mask);
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi16((uint32_t)(mask >> 32), high));
}
#else
INLINE uint64_t differ64(const uint16_t *a, const uint16_t *b) {
    uint64_t found = 0;
    uint16_t any = 0;
    for (int i = 0; i < 64; i++) any |= (uint16_t)(a[i] ^ b[i]);
    if (any)
        for (int i = 0; i < 64; i++) found |= (uint64_t)(a[i] != b[i]) << i;
    return found;
}
INLINE void places64(uint64_t mask, int base, uint16_t *places) {
    for (; mask; mask &= mask - 1) *places++ = (uint16_t)(base + __builtin_ctzll(mask));
}
#endif

static inline int nth_bit(uint64_t word, unsigned nth) {
#if defined(__BMI2__)
    return (int)_tzcnt_u64(_pdep_u64(1ull << nth, word));
#else
    while (nth--) word &= word - 1;
    return __builtin_ctzll(word);
#endif
}

/* -- what both directions scan ------------------------------------------------------------------------------------ */

typedef struct {
    uint64_t members[BLOCKS][CLASSES];
    uint32_t before[BLOCKS + 1][CLASSES]; /* in the frame, so many of the class stand before the block */
    Layout layout;
} Scan;

/* Memory that a later piece reads, on its way while this one is computed; it may lie beyond the end. */
INLINE void soon(const uint16_t *block) {
    __builtin_prefetch((const char *)block);
    __builtin_prefetch((const char *)block + 64);
}

/* The last block of a frame, of `n` elements; the rest of the piece is empty. */
static void scan_last(Scan *scan, const uint16_t *old, int block, int n) {
    uint16_t padded[64] = {0};
    uint64_t *members = scan->members[block];
    memcpy(padded, old, (size_t)n * sizeof *old);
    Before before = begin_scan(scan->before[block]);
    scan64(&scan->layout, padded, members, &before, scan->before[block + 1]);
    for (int c = 0; c < CLASSES; c++) {
        members[c] &= below(n);
        scan->before[block + 1][c] = scan->before[block][c] + (uint32_t)ones(members[c]);
    }
}

/* 15 below the highest exponent that one in 1,024 of the sample reaches. */
static int window(const uint16_t *old, int64_t n, int shift, int mask) {
    int64_t counts[256] = {0}, every = n >> 14 ? n >> 14 : 1, sampled = 0, reached = 0;
    for (int64_t i = 0; i < n; i += every, sampled++) counts[(old[i] >> shift) & mask]++;
    int exponent = mask;
    for (; exponent > 0; exponent--)
        if ((reached += counts[exponent]) * 1024 >= sampled) break;
    return exponent > CLASSES - 1 ? exponent - (CLASSES - 1) : 0;
}

/* -- numbers ------------------------------------------------------------------------------------------------------ */

static inline uint64_t load64(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline void store64(uint8_t *bytes, uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(bytes, &word, 8);
}

/* Bits on their way to memory: fewer than eight wait in `word`. Eight bytes after them may be written. */
typedef struct {
    uint8_t *at, *start, *end;
    uint64_t word;
    int fill;
} Bits;

static int begin_bits(Bits *to, Arena *from, uint64_t bytes) {
    to->at = to->start = take(from, bytes + 32);
    to->end = to->start ? to->start + bytes : NULL, to->word = 0, to->fill = 0;
    return to->start ? 0 : ROOM;
}

static int fits(const Bits *to, uint64_t bits) { return bits / 8 < (uint64_t)(to->end - to->at); }

/* At most 56 bits, all others of `value` being zero. */
INLINE void put(Bits *to, uint64_t value, int width) {
    to->word |= value << to->fill;
    store64(to->at, to->word);
    to->fill += width;
    to->at += to->fill >> 3;
    to->word >>= to->fill & ~7;
    to->fill &= 7;
}

INLINE void put_unary(Bits *to, uint64_t value) {
    for (; value > 48; value -= 48) put(to, 0, 48);
    put(to, (uint64_t)1 << value, (int)value + 1);
}

static void put_number(Bits *to, uint64_t value) {
    for (; value > 127; value >>= 7) put(to, (value & 127) | 128, 8);
    put(to, value, 8);
}

static uint64_t end_bits(Bits *to) {
    store64(to->at, to->word);
    return (uint64_t)(to->at - to->start) + (to->fill > 0);
}

typedef struct {
    int k, elias;
} Code;

static Code rice(uint64_t total, uint64_t count) {
    Code code = {0, 0};
    while (code.k < MAX_K && (count << (code.k + 1)) * 100 <= 98 * total + 49 * count) code.k++;
    return code;
}

static uint64_t sum(const uint32_t *values, int64_t count) {
    uint64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += values[i];
    return total;
}

static inline uint64_t quotient(Code code, uint64_t value) {
    if (!code.elias) return value >> code.k;
    return (uint64_t)(63 - __builtin_clzll(value + ((uint64_t)1 << code.k)) - code.k);
}

static void cost(Code code, const uint32_t *values, int64_t count, uint64_t *codes, uint64_t *fields) {
    uint64_t quotients = 0;
    for (int64_t i = 0; i < count; i++) quotients += quotient(code, values[i]);
    *codes = quotients + (uint64_t)count;
    *fields = (uint64_t)count * (uint64_t)code.k + (code.elias ? quotients : 0);
}

static Code cheapest(const uint32_t *values, int64_t count, uint64_t *bits) {
    Code best = rice(sum(values, count), (uint64_t)count);
    uint64_t codes, fields;
    cost(best, values, count, &codes, &fields);
    *bits = codes + fields;
    for (int k = 0; k <= MAX_ELIAS; k++) {
        Code code = {k, 1};
        cost(code, values, count, &codes, &fields);
        if (codes + fields < *bits) best = code, *bits = codes + fields;
    }
    return best;
}

static int put_all(Bits *codes, Bits *fields, Code code, const uint32_t *values, int64_t count) {
    uint64_t unary, plain;
    cost(code, values, count, &unary, &plain);
    if (!fits(codes, unary) || !fits(fields, plain)) return ROOM;
    /* Copies, which no store through a pointer to bytes can be taken to change. */
    Bits to_codes = *codes, to_fields = *fields;
    for (int64_t i = 0; i < count; i++) {
        uint64_t value = values[i], q = quotient(code, value);
        int width = code.elias ? code.k + (int)q : code.k;
        if (code.elias) value += (uint64_t)1 << code.k;
        put_unary(&to_codes, q);
        put(&to_fields, value & below(width), width);
    }
    *codes = to_codes, *fields = to_fields;
    return 0;
}

/* -- encode ------------------------------------------------------------------------------------------------------- */

typedef struct Chunk {
    struct Chunk *next;
    uint32_t gaps[CHUNK];
    int32_t steps[CHUNK];
} Chunk;

/* Of one class: what changes, and `next`, the rank after the last change. */
typedef struct {
    Chunk *first, *last;
    int64_t count;
    int used;
    uint32_t next;
} List;

typedef struct {
    Scan scan;
    uint16_t changed[PIECE + 64];
    List lists[CLASSES];
    int64_t changes;
} Encoder;

static int longer(List *list, Arena *arena) {
    Chunk *chunk = take(arena, sizeof *chunk);
    if (!chunk) return ROOM;
    chunk->next = NULL;
    if (list->last) list->last->next = chunk;
    else list->first = chunk;
    list->last = chunk, list->used = 0;
    return 0;
}

static int list_changes(Encoder *to, const uint16_t *old, const uint16_t *new, int changes, Arena *arena) {
    const Scan *scan = &to->scan;
    for (int i = 0; i < changes; i++) {
        int at = to->changed[i], c = class_of(&scan->layout, old[at]), b = at >> 6;
        uint32_t rank = scan->before[b][c] + (uint32_t)ones(scan->members[b][c] & below(at & 63));
        List *list = &to->lists[c];
        if ((!list->last || list->used == CHUNK) && longer(list, arena)) return ROOM;
        list->last->gaps[list->used] = rank - list->next;
        list->last->steps[list->used++] = place(new[at]) - place(old[at]);
        list->next = rank + 1, list->count++;
    }
    to->changes += changes;
    return 0;
}

static int scan_changes(Encoder *to, const uint16_t *old, const uint16_t *new, int n, Arena *arena) {
    Scan *scan = &to->scan;
    int changes = 0, whole = n / 64;
    Before before = begin_scan(scan->before[0]);
    for (int b = 0; b < whole; b++) {
        soon(old + 64 * b + AHEAD_OF_TWO), soon(new + 64 * b + AHEAD_OF_TWO);
        scan64(&scan->layout, old + 64 * b, scan->members[b], &before, scan->before[b + 1]);
        uint64_t changed = differ64(old + 64 * b, new + 64 * b);
        places64(changed, 64 * b, to->changed + changes);
        changes += ones(changed);
    }
    if (n & 63) scan_last(scan, old + 64 * whole, whole, n & 63);
    for (int i = 64 * whole; i < n; i++)
        if (old[i] != new[i]) to->changed[changes++] = (uint16_t)i;
    int failed = list_changes(to, old, new, changes, arena);
    memcpy(scan->before[0], scan->before[whole], sizeof scan->before[0]);
    return failed;
}

/* The list in two arrays, one after the other. */
static void flatten(const List *list, uint32_t *gaps, int32_t *steps) {
    for (const Chunk *chunk = list->first; chunk; chunk = chunk->next) {
        size_t used = chunk->next ? CHUNK : (size_t)list->used;
        memcpy(gaps, chunk->gaps, used * sizeof *gaps), memcpy(steps, chunk->steps, used * sizeof *steps);
        gaps += used, steps += used;
    }
}

/* Gaps between those that stay, from the `count` gaps between those that change. */
static void stays_of(const uint32_t *gaps, int64_t count, uint32_t *stays) {
    uint32_t run = 0;
    for (int64_t i = 0; i < count; i++, run++)
        for (uint32_t gap = gaps[i]; gap; gap--, run = 0) *stays++ = run;
}

static void put_signs(Bits *fields, const int32_t *steps, int64_t count) {
    Bits to = *fields;
    for (int64_t i = 0; i < count; i += 32) {
        int width = count - i < 32 ? (int)(count - i) : 32;
        uint64_t signs = 0;
        for (int j = 0; j < width; j++) signs |= (uint64_t)(steps[i + j] < 0) << j;
        put(&to, signs, width);
    }
    *fields = to;
}

/* `gaps` and `rest` are room for `count` numbers each. */
static int put_sizes(Bits *head, Bits *codes, Bits *fields, uint32_t *sizes, int64_t count, uint32_t *gaps, uint32_t *rest) {
    int64_t large = 0, last = -1;
    for (int64_t i = 0; i < count; i++) {
        if (!sizes[i]) continue;
        rest[large] = sizes[i] - 1;
        gaps[large++] = (uint32_t)(i - last - 1), last = i;
    }
    uint64_t bits, plain_bits, unary, plain;
    Code in_list = rice(sum(gaps, large), (uint64_t)large), code = cheapest(rest, large, &bits);
    int listed = 1;
    if (4 * large > count) {
        Code other = cheapest(sizes, count, &plain_bits);
        cost(in_list, gaps, large, &unary, &plain);
        listed = bits + unary + plain <= plain_bits;
        if (!listed) code = other;
    }
    put(head, (uint64_t)(code.k | (code.elias ? 64 : 0) | (listed ? 128 : 0)), 8);
    if (!listed) return put_all(codes, fields, code, sizes, count);
    put_number(head, (uint64_t)large);
    if (large) put(head, (uint64_t)in_list.k, 8);
    return put_all(codes, fields, in_list, gaps, large) || put_all(codes, fields, code, rest, large) ? ROOM : 0;
}

static int put_class(Bits *head, Bits *codes, Bits *fields, const List *list, Arena arena) {
    int64_t count = list->count, staying = (int64_t)list->next - count, listed = staying < count ? staying : count;
    uint32_t *gaps = take(&arena, (uint64_t)count * sizeof *gaps), *spare = take(&arena, (uint64_t)count * sizeof *spare);
    int32_t *steps = take(&arena, (uint64_t)count * sizeof *steps);
    if (!gaps || !spare || !steps || !fits(fields, (uint64_t)count)) return ROOM;
    flatten(list, gaps, steps);
    if (staying < count) stays_of(gaps, count, spare);
    const uint32_t *numbers = staying < count ? spare : gaps;
    Code code = rice(sum(numbers, listed), (uint64_t)listed);
    put_number(head, (uint64_t)count);
    put(head, (uint64_t)(code.k | (staying < count ? 128 : 0)), 8);
    if (staying < count) put_number(head, (uint64_t)staying);
    if (put_all(codes, fields, code, numbers, listed) || !fits(fields, (uint64_t)count)) return ROOM;
    put_signs(fields, steps, count);
    uint32_t *sizes = (uint32_t *)steps;
    for (int64_t i = 0; i < count; i++) sizes[i] = (uint32_t)abs(steps[i]) - 1;
    return put_sizes(head, codes, fields, sizes, count, gaps, spare);
}

/* Codes take at most 25 bits a change and fields 69: 3.1 and 24 for a gap, 1 for its sign, 3.1 and 24 for a gap between
   large steps, 18 and 20 for a size. */
static int64_t assemble(const Encoder *from, Arena *arena, const uint8_t **out) {
    Bits head, codes, fields;
    uint64_t used = 0, room = 9 * (uint64_t)from->changes + 1024;
    if (begin_bits(&head, arena, 1024) || begin_bits(&codes, arena, room) || begin_bits(&fields, arena, room)) return ROOM;
    for (int c = 0; c < CLASSES; c++) used |= (uint64_t)(from->lists[c].count > 0) << c;
    put(&head, (uint64_t)from->scan.layout.lo, 8), put(&head, used, 16);
    for (int c = 0; c < CLASSES; c++)
        if (from->lists[c].count && put_class(&head, &codes, &fields, &from->lists[c], *arena)) return ROOM;
    uint64_t m = end_bits(&codes), k = end_bits(&fields);
    put_number(&head, m);
    uint64_t n = end_bits(&head);
    uint8_t *body = take(arena, n + m + k);
    if (!body) return ROOM;
    memcpy(body, head.start, n), memcpy(body + n, codes.start, m), memcpy(body + n + m, fields.start, k);
    *out = body;
    return (int64_t)(n + m + k);
}

/* Length of the body, which `*out` then points to, within `work`; 0 if nothing changes; DENSE if more than `most`
   elements do; or ROOM. */
API int64_t echo2_encode(
    const uint16_t *old, const uint16_t *new, int64_t n, int shift, int mask, int64_t most, uint8_t *work,
    int64_t work_bytes, const uint8_t **out
) {
    Arena arena = {work, work + work_bytes};
    Encoder *to = take(&arena, sizeof *to);
    if (!to) return ROOM;
    to->scan.layout = (Layout){shift, mask, window(old, n, shift, mask)}, to->changes = 0;
    memset(to->lists, 0, sizeof to->lists), memset(to->scan.before[0], 0, sizeof to->scan.before[0]);
    for (int64_t at = 0; at < n; at += PIECE) {
        if (scan_changes(to, old + at, new + at, (int)(n - at < PIECE ? n - at : PIECE), &arena)) return ROOM;
        if (to->changes > most) return DENSE;
    }
    return to->changes ? assemble(to, &arena, out) : 0;
}

/* -- decode ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *at, *end;
} Bytes;

static int byte_of(Bytes *from, uint64_t *value) {
    if (from->at == from->end) return HEADS;
    *value = *from->at++;
    return 0;
}

static int number_of(Bytes *from, uint64_t *value) {
    uint64_t byte;
    *value = 0;
    for (int place = 0; place < 35; place += 7) {
        if (byte_of(from, &byte)) return HEADS;
        *value |= (byte & 127) << place;
        if (byte < 128) return 0;
    }
    return HEADS;
}

typedef struct {
    uint64_t changes, staying, large;
    int stays, listed; /* whether `staying` and `large` are listed */
    Code gaps, sizes, large_gaps;
} Head;

static int head_of(Bytes *from, Head *head) {
    uint64_t form, k = 0;
    if (number_of(from, &head->changes) || byte_of(from, &form)) return HEADS;
    head->stays = form >> 7 & 1, head->gaps = (Code){form & 127, 0};
    if (head->stays && number_of(from, &head->staying)) return HEADS;
    if (byte_of(from, &form)) return HEADS;
    head->listed = form >> 7 & 1, head->sizes = (Code){form & 63, form >> 6 & 1};
    if (head->listed && (number_of(from, &head->large) || (head->large && byte_of(from, &k)))) return HEADS;
    head->large_gaps = (Code){(int)k, 0};
    if (head->gaps.k > MAX_K || head->sizes.k > MAX_K || k > MAX_K || head->large > head->changes) return HEADS;
    return head->changes ? 0 : HEADS;
}

typedef struct {
    const uint8_t *codes, *fields; /* sixteen zeros follow each */
    uint64_t code, field, code_end, field_end; /* bits */
} Numbers;

/* `count` numbers in unary. None is 2^31 or more. */
static int unary_of(Numbers *from, uint64_t count, uint32_t *out) {
    uint64_t at = from->code, base = at & ~(uint64_t)63;
    if (!count) return 0;
    if (at >= from->code_end) return CODES;
    uint64_t word = load64(from->codes + base / 8) & ~0ull << (at & 63);
    for (;;) {
        for (; word; word &= word - 1) {
            uint64_t one = base + (uint64_t)__builtin_ctzll(word);
            *out++ = (uint32_t)(one - at), at = one + 1;
            if (--count) continue;
            from->code = at;
            return 0;
        }
        base += 64;
        if (base >= from->code_end || base - at > 0x7FFFFF00) return CODES;
        word = load64(from->codes + base / 8);
    }
}

INLINE uint64_t bits_at(const uint8_t *bytes, uint64_t at, int width) {
    return load64(bytes + (at >> 3)) >> (at & 7) & below(width);
}

static uint64_t rices_of(const Numbers *from, int k, uint64_t count, uint32_t *out) {
    uint64_t most = 0, at = from->field;
    for (uint64_t i = 0; i < count; i++, at += (uint64_t)k) {
        uint64_t value = (uint64_t)out[i] << k | bits_at(from->fields, at, k);
        most = value > most ? value : most;
        out[i] = (uint32_t)value;
    }
    return most;
}

/* `count` numbers below `limit`, which is at most 2^31. */
static int all_of(Numbers *from, Code code, uint64_t count, uint64_t limit, int refusal, uint32_t *out) {
    if (unary_of(from, count, out)) return CODES;
    if (!code.elias) {
        uint64_t bits = count * (uint64_t)code.k;
        if (bits > from->field_end - from->field) return FIELDS;
        uint64_t most = rices_of(from, code.k, count, out);
        from->field += bits;
        return count && most >= limit ? refusal : 0;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (out[i] > 16) return STEP;
        int width = (int)out[i] + code.k;
        if ((uint64_t)width > from->field_end - from->field) return FIELDS;
        uint64_t value = bits_at(from->fields, from->field, width) + (1ull << width) - (1ull << code.k);
        from->field += (uint64_t)width;
        if (value >= limit) return refusal;
        out[i] = (uint32_t)value;
    }
    return 0;
}

/* Gaps, each below 2^31, become places, in place; the last, and so all, below `limit`. */
static int places_of(uint32_t *gaps, uint64_t count, uint64_t limit) {
    uint64_t next = 0;
    for (uint64_t i = 0; i < count; i++) {
        next += gaps[i];
        gaps[i] = (uint32_t)next++;
    }
    return next > limit ? RANK : 0;
}

static int ranks_of(const Head *head, Numbers *from, uint64_t n, uint32_t *ranks, uint32_t *spare) {
    uint32_t *listed = head->stays ? spare : ranks;
    uint64_t count = head->stays ? head->staying : head->changes, total = head->changes + head->staying, at = 0, next = 0;
    int failed = all_of(from, head->gaps, count, n, RANK, listed);
    if (!failed) failed = places_of(listed, count, n);
    if (failed || !head->stays) return failed;
    if (count && listed[count - 1] + (uint64_t)1 >= total) return RANK;
    for (uint64_t rank = 0; rank < total; rank++) {
        if (next < count && listed[next] == rank) next++;
        else ranks[at++] = (uint32_t)rank;
    }
    return 0;
}

static int steps_of(const Head *head, Numbers *from, uint32_t *large, int32_t *steps) {
    uint64_t count = head->changes, sized = head->listed ? head->large : count, signs = from->field;
    uint32_t *sizes = large + head->large;
    if (count > from->field_end - from->field) return FIELDS;
    from->field += count;
    int failed = head->listed ? all_of(from, head->large_gaps, head->large, count, RANK, large) : 0;
    if (!failed && head->listed) failed = places_of(large, head->large, count);
    if (!failed) failed = all_of(from, head->sizes, sized, head->listed ? 0xFFFE : 0xFFFF, STEP, sizes);
    if (failed) return failed;
    for (uint64_t i = 0; i < count; i++) steps[i] = 1 - 2 * (from->fields[(signs + i) >> 3] >> ((signs + i) & 7) & 1);
    if (head->listed) for (uint64_t i = 0; i < sized; i++) steps[large[i]] *= (int32_t)sizes[i] + 2;
    else for (uint64_t i = 0; i < count; i++) steps[i] *= (int32_t)sizes[i] + 1;
    return 0;
}

typedef struct {
    Scan scan;
    const uint32_t *ranks[CLASSES]; /* what is left of each list; its end is marked */
    const int32_t *steps[CLASSES];
    uint64_t hits[BLOCKS];
    int32_t moves[PIECE];
    uint16_t found[PIECE + 64];
} Decoder;

/* Where in the piece the elements of class `c` are whose ranks lie in it. */
static void find_class(Decoder *from, int c) {
    const Scan *scan = &from->scan;
    const uint32_t *rank = from->ranks[c], end = scan->before[BLOCKS][c];
    const int32_t *step = from->steps[c];
    for (; *rank < end; rank++) {
        __builtin_prefetch(rank + LATER), __builtin_prefetch(step + LATER);
        const uint32_t *before = &scan->before[0][c], wanted = *rank;
#pragma GCC unroll 8
        for (int half = BLOCKS / 2; half; half /= 2)
            before += (CLASSES * half) & ((size_t)(wanted < before[CLASSES * half]) - 1);
        size_t place = (size_t)(before - &scan->before[0][0]), block = place / CLASSES;
        int bit = nth_bit((&scan->members[0][0])[place], wanted - *before);
        from->hits[block] |= 1ull << bit;
        from->moves[64 * block + (size_t)bit] = *step++;
    }
    from->ranks[c] = rank, from->steps[c] = step;
}

static int find_changes(Decoder *from, const uint16_t *old, int n, uint32_t base, uint32_t *index, uint16_t *bits) {
    Scan *scan = &from->scan;
    int found = 0, beyond = 0, whole = n / 64, blocks = (n + 63) / 64;
    Before before = begin_scan(scan->before[0]);
    for (int b = 0; b < whole; b++) {
        soon(old + 64 * b + AHEAD);
        scan64(&scan->layout, old + 64 * b, scan->members[b], &before, scan->before[b + 1]);
    }
    if (n & 63) scan_last(scan, old + 64 * whole, whole, n & 63);
    for (int b = blocks; b < BLOCKS; b++) memcpy(scan->before[b + 1], scan->before[b], sizeof scan->before[b]);
    memset(from->hits, 0, sizeof from->hits);
    for (int c = 0; c < CLASSES; c++) find_class(from, c);
    for (int b = 0; b < blocks; b++) {
        places64(from->hits[b], 64 * b, from->found + found);
        found += ones(from->hits[b]);
    }
    for (int i = 0; i < found; i++) {
        int at = from->found[i];
        int32_t to = place(old[at]) + from->moves[at];
        beyond |= to > 0x7FFF || to < -0x8000;
        index[i] = base + (uint32_t)at;
        bits[i] = from_place(to);
    }
    memcpy(scan->before[0], scan->before[BLOCKS], sizeof scan->before[0]);
    return beyond ? STEP : found;
}

static int64_t scan_all(
    Decoder *from, const uint16_t *old, int64_t n, int64_t changes, uint32_t *index, uint16_t *bits
) {
    int64_t found = 0;
    for (int64_t at = 0; at < n; at += PIECE) {
        int more = find_changes(from, old + at, (int)(n - at < PIECE ? n - at : PIECE), (uint32_t)at, index + found, bits + found);
        if (more < 0) return more;
        found += more;
    }
    return found == changes ? found : RANK;
}

/* Lists of all classes: `ranks` has an end mark after each class, `spare` holds what one class lists besides. */
static int lists_of(
    Decoder *into, const Head *heads, Numbers *from, uint64_t n, uint32_t *ranks, int32_t *steps, uint32_t *spare
) {
    static const uint32_t nothing = END;
    for (int c = 0; c < CLASSES; c++) {
        into->ranks[c] = &nothing;
        if (!heads[c].changes) continue;
        int failed = ranks_of(&heads[c], from, n, ranks, spare);
        if (!failed) failed = steps_of(&heads[c], from, spare, steps);
        if (failed) return failed;
        into->ranks[c] = ranks, into->steps[c] = steps;
        ranks += heads[c].changes, steps += heads[c].changes;
        *ranks++ = END;
    }
    uint64_t codes = (from->code + 7) / 8, fields = (from->field + 7) / 8;
    if (8 * codes != from->code_end || (from->code & 7 && from->codes[codes - 1] >> (from->code & 7))) return CODES;
    if (8 * fields != from->field_end || (from->field & 7 && from->fields[fields - 1] >> (from->field & 7))) return FIELDS;
    return 0;
}

static const uint8_t *padded(const uint8_t *bytes, uint64_t length, Arena *arena) {
    uint8_t *copy = take(arena, length + 16);
    if (copy) memcpy(copy, bytes, length), memset(copy + length, 0, 16);
    return copy;
}

/* Changes found, in ascending order, in `index` and `bits`, which hold `room`; or the reason of a refusal. */
API int64_t echo2_decode(
    const uint8_t *body, int64_t length, const uint16_t *old, int64_t n, int shift, int mask, uint32_t *index,
    uint16_t *bits, int64_t room, uint8_t *work, int64_t work_bytes
) {
    Bytes data = {body, body + length};
    Arena arena = {work, work + work_bytes};
    Head heads[CLASSES];
    uint64_t changes = 0, numbers = 0, most = 0, codes;
    memset(heads, 0, sizeof heads);
    if (length < 3 || body[0] > mask || n > 0x7FFFFFFF) return HEADS;
    data.at += 3;
    for (int c = 0; c < CLASSES; c++) {
        Head *head = &heads[c];
        if (!((body[1] | body[2] << 8) >> c & 1)) continue;
        if (head_of(&data, head) || head->changes + head->staying > (uint64_t)n) return HEADS;
        uint64_t listed = head->stays ? head->staying : head->changes;
        uint64_t sizes = head->listed ? 2 * head->large : head->changes, own = listed > sizes ? listed : sizes;
        changes += head->changes, numbers += listed + head->changes + sizes;
        if (own > most) most = own;
    }
    if (!changes || changes > (uint64_t)n || changes != (uint64_t)room) return HEADS;
    if (numbers > 8 * (uint64_t)(data.end - data.at)) return HEADS;
    if (number_of(&data, &codes) || codes > (uint64_t)(data.end - data.at)) return CODES;
    uint64_t rest = (uint64_t)(data.end - data.at) - codes;
    Decoder *from = take(&arena, sizeof *from);
    Numbers read = {padded(data.at, codes, &arena), padded(data.at + codes, rest, &arena), 0, 0, 8 * codes, 8 * rest};
    uint32_t *ranks = take(&arena, (changes + CLASSES) * sizeof *ranks), *spare = take(&arena, most * sizeof *spare);
    int32_t *steps = take(&arena, changes * sizeof *steps);
    if (!from || !read.codes || !read.fields || !ranks || !spare || !steps) return ROOM;
    from->scan.layout = (Layout){shift, mask, body[0]};
    memset(from->scan.before[0], 0, sizeof from->scan.before[0]);
    int failed = lists_of(from, heads, &read, (uint64_t)n, ranks, steps, spare);
    return failed ? failed : scan_all(from, old, n, (int64_t)changes, index, bits);
}

/* -- and into the weights ----------------------------------------------------------------------------------------- */

/* `held`, of `n` elements, begins at element `first`. How many changes were written before one that lies beyond it. */
API int64_t echo2_write(
    const uint32_t *index, const uint16_t *bits, int64_t count, uint16_t *held, int64_t first, int64_t n
) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)(index[i] - first);
        uint64_t later = (uint64_t)(index[i + LATER < count ? i + LATER : i] - first);
        if (at >= (uint64_t)n) return i;
        __builtin_prefetch(held + (later < (uint64_t)n ? later : 0), 1);
        held[at] = bits[i];
    }
    return count;
}

/* 2: AVX-512 as since Ice Lake and Zen 4, 1: AVX2 with BMI2, 0: neither. */
API int echo2_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    int wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("gfni");
    return avx2 && wide && __builtin_cpu_supports("avx512vpopcntdq") ? 2 : avx2;
#else
    return 0;
#endif
}
