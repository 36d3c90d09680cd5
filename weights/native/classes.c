/* The body of a CLASSES frame, as weights/classes.py describes it: the same bytes, the same refusals, faster.

   Built once for each level of the processor (generic, AVX2, AVX-512); weights/native/__init__.py loads the best.
   Plain C99 without Python's headers. No state; every length is checked before memory is touched.

   Elements are scanned in pieces that fit a near cache, 64 to a block. Classes that are common get a bit mask for each
   block, and one population count; all others together are few: they are gathered, and counted one by one. */

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
#define BLOCKS 256
#define PIECE (64 * BLOCKS)
#define COMMON 48
#define MAX_COMMON 7
#define END 0xFFFFFFFFu

enum { MEMORY = -1, HEADS = -2, CODES = -3, FIELDS = -4, RANK = -5, STEP = -6 };

/* -- blocks of 64 ------------------------------------------------------------------------------------------------- */

#if defined(__AVX512VBMI2__) && defined(__AVX512BW__) && defined(__BMI2__)
static inline uint64_t equal64(const uint8_t *bytes, int value) {
    return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(bytes), _mm512_set1_epi8((char)value));
}
static inline uint64_t differ64(const uint16_t *a, const uint16_t *b) {
    uint64_t low = _mm512_cmpneq_epu16_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b));
    return low | (uint64_t)_mm512_cmpneq_epu16_mask(_mm512_loadu_si512(a + 32), _mm512_loadu_si512(b + 32)) << 32;
}
static inline void places64(uint64_t mask, int base, uint16_t *places) {
    static const uint16_t first[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                       16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    __m512i low = _mm512_add_epi16(_mm512_loadu_si512(first), _mm512_set1_epi16((short)base));
    __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(32));
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi16((uint32_t)mask, low));
    places += __builtin_popcount((uint32_t)mask);
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi16((uint32_t)(mask >> 32), high));
}
/* Bytes, and their numbers from `base` on, where the mask has ones; up to 64 of each are written. */
static inline void gather64(const uint8_t *bytes, uint64_t mask, int base, uint8_t *out, uint16_t *places) {
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(bytes)));
    places64(mask, base, places);
}
#else
#if defined(__AVX2__)
static inline uint64_t equal64(const uint8_t *bytes, int value) {
    __m256i wanted = _mm256_set1_epi8((char)value);
    const __m256i *at = (const __m256i *)bytes;
    uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(at), wanted));
    uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(at + 1), wanted));
    return low | (uint64_t)high << 32;
}
#else
static inline uint64_t equal64(const uint8_t *bytes, int value) {
    const uint64_t low = 0x7F7F7F7F7F7F7F7Full;
    uint64_t found = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t word;
        memcpy(&word, bytes + 8 * i, 8);
        word ^= 0x0101010101010101ull * (uint64_t)value;
        word = ~(((word & low) + low) | word | low) >> 7;
        found |= (word * 0x0102040810204080ull >> 56) << (8 * i);
    }
    return found;
}
#endif
static inline uint64_t differ64(const uint16_t *a, const uint16_t *b) {
    uint8_t same[64];
    uint16_t any = 0;
    for (int i = 0; i < 64; i++) any |= (uint16_t)(a[i] ^ b[i]);
    if (!any) return 0;
    for (int i = 0; i < 64; i++) same[i] = a[i] == b[i];
    return equal64(same, 0);
}
static inline void places64(uint64_t mask, int base, uint16_t *places) {
    for (; mask; mask &= mask - 1) *places++ = (uint16_t)(base + __builtin_ctzll(mask));
}
static inline void gather64(const uint8_t *bytes, uint64_t mask, int base, uint8_t *out, uint16_t *places) {
    for (int bit; mask; mask &= mask - 1) {
        bit = __builtin_ctzll(mask);
        *out++ = bytes[bit], *places++ = (uint16_t)(base + bit);
    }
}
#endif

/* How many of 16 ascending numbers are at most `value`. */
static inline int at_most(const uint16_t *numbers, uint16_t value) {
#if defined(__AVX512VBMI2__) && defined(__AVX512VL__)
    __m256i loaded = _mm256_loadu_si256((const __m256i *)numbers);
    return __builtin_popcount(_mm256_cmple_epu16_mask(loaded, _mm256_set1_epi16((short)value)));
#else
    uint16_t found = 0;
    for (int i = 0; i < 16; i++) found += numbers[i] <= value;
    return found;
#endif
}

static inline int nth_bit(uint64_t word, unsigned nth) {
#if defined(__BMI2__)
    return (int)_tzcnt_u64(_pdep_u64(1ull << nth, word));
#else
    while (nth--) word &= word - 1;
    return __builtin_ctzll(word);
#endif
}

/* Memory that a later piece or block reads, on its way while this one is computed; it may lie beyond the end. */
static inline void soon(const uint16_t *old) {
    __builtin_prefetch((const char *)old);
    __builtin_prefetch((const char *)old + 64);
}
static inline uint64_t below(int bit) { return (1ull << bit) - 1; }
static inline int ones(uint64_t word) { return __builtin_popcountll(word); }
/* The place of a 16-bit float among all, by value, and back: a negative one has its lower bits inverted. */
static inline int32_t place(uint16_t bits) { return (int16_t)(bits ^ (((int16_t)bits >> 15) & 0x7FFF)); }
static inline uint16_t from_place(int32_t place) { return (uint16_t)(place ^ ((place >> 31) & 0x7FFF)); }

/* -- what both directions scan ------------------------------------------------------------------------------------ */

typedef struct {
    int shift, mask, lo;
    int common[MAX_COMMON], slot[CLASSES], commons; /* slot: place among the common ones, or MAX_COMMON */
    uint32_t seen[CLASSES]; /* elements of the class before the block, or before the piece */
    uint8_t classes[PIECE + 64], few_classes[PIECE + 64];
    uint16_t few_places[PIECE + 64];
    int few;
} Scan;

/* Window: 15 below the highest exponent that one in 1,024 of the sample reaches, unless `lo` is given. */
static void begin(Scan *scan, const uint16_t *old, int64_t n, int shift, int mask, int lo) {
    int64_t counts[256] = {0}, every = n >> 14 ? n >> 14 : 1, sampled = 0, reached = 0;
    int64_t members[CLASSES] = {0};
    for (int64_t i = 0; i < n; i += every, sampled++) counts[(old[i] >> shift) & mask]++;
    int exponent = mask;
    for (; lo < 0 && exponent > 0; exponent--)
        if ((reached += counts[exponent]) * 1024 >= sampled) break;
    if (lo < 0) lo = exponent > CLASSES - 1 ? exponent - (CLASSES - 1) : 0;
    for (int e = 0; e <= mask; e++) members[e < lo ? 0 : e - lo > CLASSES - 1 ? CLASSES - 1 : e - lo] += counts[e];
    scan->shift = shift, scan->mask = mask, scan->lo = lo, scan->commons = 0;
    memset(scan->seen, 0, sizeof scan->seen);
    for (int c = 0; c < CLASSES; c++) {
        scan->slot[c] = MAX_COMMON;
        if (members[c] * COMMON < sampled || scan->commons == MAX_COMMON) continue;
        scan->slot[c] = scan->commons;
        scan->common[scan->commons++] = c;
    }
}

/* Classes of a piece; 255 after its end. */
static void classify(Scan *scan, const uint16_t *restrict old, int n) {
    const int shift = scan->shift;
    const uint8_t mask = (uint8_t)scan->mask, lo = (uint8_t)scan->lo;
    uint8_t *restrict classes = scan->classes;
    int i = 0;
#if defined(__AVX512VBMI2__) && defined(__AVX512BW__)
    const __m128i by = _mm_cvtsi32_si128(shift);
    const __m512i low = _mm512_set1_epi8((char)lo), kept = _mm512_set1_epi8((char)mask), top = _mm512_set1_epi8(15);
    for (; i + 64 <= n; i += 64) {
        __m256i a = _mm512_cvtepi16_epi8(_mm512_srl_epi16(_mm512_loadu_si512(old + i), by));
        __m256i b = _mm512_cvtepi16_epi8(_mm512_srl_epi16(_mm512_loadu_si512(old + i + 32), by));
        __m512i both = _mm512_and_si512(_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1), kept);
        _mm512_storeu_si512(classes + i, _mm512_min_epu8(_mm512_subs_epu8(both, low), top));
    }
#endif
    for (; i < n; i++) {
        uint8_t exponent = (uint8_t)(old[i] >> shift) & mask;
        exponent = (uint8_t)((exponent > lo ? exponent : lo) - lo);
        classes[i] = exponent < CLASSES - 1 ? exponent : CLASSES - 1;
    }
    memset(classes + n, 255, (size_t)(-n & 63));
}

static inline uint64_t elements(int block, int n) { return 64 * block + 64 <= n ? ~0ull : below(n - 64 * block); }

/* Unrolled for the number of common classes. */
#define FOR_COMMONS(how_many, call)                                                                                     \
    switch (how_many) {                                                                                                 \
    case 0: call(0); break;                                                                                             \
    case 1: call(1); break;                                                                                             \
    case 2: call(2); break;                                                                                             \
    case 3: call(3); break;                                                                                             \
    case 4: call(4); break;                                                                                             \
    case 5: call(5); break;                                                                                             \
    case 6: call(6); break;                                                                                             \
    default: call(MAX_COMMON);                                                                                          \
    }

/* -- numbers ------------------------------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *bytes;
    uint64_t bits, room; /* room: bytes, of which eight are spare */
} Bits;

static int reserve(Bits *to, uint64_t more) {
    uint64_t needed = (to->bits + more + 7) / 8 + 16;
    if (needed <= to->room) return 0;
    uint64_t room = needed + needed / 2;
    uint8_t *bytes = realloc(to->bytes, room);
    if (!bytes) return MEMORY;
    memset(bytes + to->room, 0, room - to->room);
    to->bytes = bytes, to->room = room;
    return 0;
}

static inline uint64_t load64(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline void put(Bits *to, uint64_t value, int width) {
    uint8_t *at = to->bytes + (to->bits >> 3);
    uint64_t word = load64(at) | (value & (((uint64_t)1 << width) - 1)) << (to->bits & 7);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(at, &word, 8);
    to->bits += (uint64_t)width;
}

static inline void put_unary(Bits *to, uint64_t value) {
    to->bits += value;
    to->bytes[to->bits >> 3] |= (uint8_t)(1 << (to->bits & 7));
    to->bits++;
}

static inline int put_number(Bits *to, uint64_t value) {
    if (reserve(to, 80)) return MEMORY;
    for (; value > 127; value >>= 7) put(to, (value & 127) | 128, 8);
    put(to, value, 8);
    return 0;
}

typedef struct {
    int k, elias;
} Code;

static Code rice(const uint32_t *values, int64_t count) {
    uint64_t total = 0, n = (uint64_t)count;
    Code code = {0, 0};
    for (int64_t i = 0; i < count; i++) total += values[i];
    while (code.k < MAX_K && (n << (code.k + 1)) * 100 <= 98 * total + 49 * n) code.k++;
    return code;
}

static inline uint64_t quotient(Code code, uint64_t value) {
    if (!code.elias) return value >> code.k;
    return (uint64_t)(63 - __builtin_clzll(value + ((uint64_t)1 << code.k)) - code.k);
}

static void cost(Code code, const uint32_t *values, int64_t count, uint64_t *codes, uint64_t *fields) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) sum += quotient(code, values[i]);
    *codes = sum + (uint64_t)count;
    *fields = (uint64_t)count * (uint64_t)code.k + (code.elias ? sum : 0);
}

static Code cheapest(const uint32_t *values, int64_t count, uint64_t *bits) {
    Code best = rice(values, count);
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
    if (reserve(codes, unary) || reserve(fields, plain)) return MEMORY;
    /* Copies, which no store through a pointer to bytes can be taken to change. */
    Bits to_codes = *codes, to_fields = *fields;
    for (int64_t i = 0; i < count; i++) {
        uint64_t value = values[i], q = quotient(code, value);
        put_unary(&to_codes, q);
        if (code.elias) put(&to_fields, value + ((uint64_t)1 << code.k), code.k + (int)q);
        else if (code.k) put(&to_fields, value, code.k);
    }
    codes->bits = to_codes.bits, fields->bits = to_fields.bits;
    return 0;
}

/* -- encode ------------------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t rank;
    int32_t step;
} Change;

typedef struct {
    Change *changes;
    int64_t count, room;
} List;

static int room_for(List *list, int64_t more) {
    if (list->count + more <= list->room) return 0;
    int64_t room = (list->count + more) * 2;
    Change *changes = realloc(list->changes, (size_t)room * sizeof *changes);
    if (!changes) return MEMORY;
    list->changes = changes, list->room = room;
    return 0;
}

typedef struct {
    Scan scan;
    uint64_t members[BLOCKS][MAX_COMMON + 1]; /* by slot: who in the block is of the class */
    uint32_t before[BLOCKS][MAX_COMMON + 1]; /* and how many there are before the block; of the few: in the piece */
    uint16_t changed[PIECE + 64];
    uint32_t few_ranks[PIECE + 1];
    List lists[CLASSES];
} Encoder;

INLINE int scan_blocks(Encoder *to, const uint16_t *old, const uint16_t *new, int n, const int commons) {
    Scan *scan = &to->scan;
    uint32_t seen[MAX_COMMON + 1];
    int few = 0, changes = 0;
    for (int i = 0; i < commons; i++) seen[i] = scan->seen[scan->common[i]];
    for (int b = 0; 64 * b < n; b++) {
        const uint8_t *bytes = scan->classes + 64 * b;
        uint64_t rest = elements(b, n), changed = 0;
        soon(old + PIECE + 64 * b), soon(new + 1024 + 64 * b);
        for (int i = 0; i < commons; i++) {
            uint64_t members = equal64(bytes, scan->common[i]);
            rest &= ~members;
            to->members[b][i] = members, to->before[b][i] = seen[i];
            seen[i] += (uint32_t)ones(members);
        }
        to->members[b][MAX_COMMON] = rest, to->before[b][MAX_COMMON] = (uint32_t)few;
        gather64(bytes, rest, 64 * b, scan->few_classes + few, scan->few_places + few);
        few += ones(rest);
        if (64 * b + 64 <= n) changed = differ64(old + 64 * b, new + 64 * b);
        else for (int i = 64 * b; i < n; i++) changed |= (uint64_t)(old[i] != new[i]) << (i & 63);
        places64(changed, 64 * b, to->changed + changes);
        changes += ones(changed);
    }
    for (int i = 0; i < commons; i++) scan->seen[scan->common[i]] = seen[i];
    scan->few = few;
    return changes;
}

static int scan_changes(Encoder *to, const uint16_t *old, const uint16_t *new, int n) {
    Scan *scan = &to->scan;
    int changes = 0;
    classify(scan, old, n);
#define SCAN(commons) changes = scan_blocks(to, old, new, n, commons)
    FOR_COMMONS(scan->commons, SCAN)
    for (int c = 0; c < CLASSES; c++)
        if (room_for(&to->lists[c], changes)) return MEMORY;
    for (int i = 0; i < scan->few; i++) to->few_ranks[i] = scan->seen[scan->few_classes[i]]++;
    for (int i = 0; i < changes; i++) {
        int at = to->changed[i], c = scan->classes[at], slot = scan->slot[c];
        uint32_t rank = to->before[at >> 6][slot] + (uint32_t)ones(to->members[at >> 6][slot] & below(at & 63));
        uint32_t few_rank = to->few_ranks[slot == MAX_COMMON ? rank : 0];
        Change change = {slot == MAX_COMMON ? few_rank : rank, place(new[at]) - place(old[at])};
        to->lists[c].changes[to->lists[c].count++] = change;
    }
    return 0;
}

/* Gaps between the `count` ranks; or, where fewer elements stay below the last change, between those. */
static int64_t gaps_of(const List *list, uint32_t *gaps, int *staying) {
    int64_t below_last = (int64_t)list->changes[list->count - 1].rank + 1 - list->count, at = 0;
    *staying = below_last < list->count;
    uint32_t next = 0, run = 0;
    for (int64_t i = 0; i < list->count; i++) {
        uint32_t gap = list->changes[i].rank - next;
        next = list->changes[i].rank + 1;
        if (!*staying) gaps[at++] = gap;
        else for (; gap; gap--, run = 0) gaps[at++] = run;
        run++;
    }
    return at;
}

static int put_sizes(Bits *head, Bits *codes, Bits *fields, const List *list, uint32_t *sizes, uint32_t *gaps) {
    int64_t count = list->count, large = 0, last = -1;
    for (int64_t i = 0; i < count; i++) {
        sizes[i] = (uint32_t)abs(list->changes[i].step) - 1;
        if (sizes[i]) gaps[large++] = (uint32_t)(i - last - 1), last = i;
    }
    uint32_t *rest = gaps + large;
    for (int64_t i = 0, at = 0; i < count; i++)
        if (sizes[i]) rest[at++] = sizes[i] - 1;
    uint64_t bits, plain_bits, unary, plain;
    Code in_list = rice(gaps, large), code = cheapest(rest, large, &bits);
    int listed = 1;
    if (4 * large > count) {
        Code other = cheapest(sizes, count, &plain_bits);
        cost(in_list, gaps, large, &unary, &plain);
        listed = bits + unary + plain <= plain_bits;
        if (!listed) code = other;
    }
    if (reserve(head, 160)) return MEMORY;
    put(head, (uint64_t)(code.k | (code.elias ? 64 : 0) | (listed ? 128 : 0)), 8);
    if (!listed) return put_all(codes, fields, code, sizes, count);
    if (put_number(head, (uint64_t)large)) return MEMORY;
    if (large) put(head, (uint64_t)in_list.k, 8);
    return put_all(codes, fields, in_list, gaps, large) || put_all(codes, fields, code, rest, large) ? MEMORY : 0;
}

static void put_signs(Bits *fields, const List *list) {
    for (int64_t i = 0; i < list->count; i += 32) {
        int64_t end = i + 32 < list->count ? i + 32 : list->count;
        uint64_t signs = 0;
        for (int64_t j = i; j < end; j++) signs |= (uint64_t)(list->changes[j].step < 0) << (j - i);
        put(fields, signs, (int)(end - i));
    }
}

static int put_class(Bits *head, Bits *codes, Bits *fields, const List *list) {
    uint32_t *sizes = malloc((size_t)list->count * 3 * sizeof *sizes), *gaps = sizes + list->count;
    int failed = !sizes, staying;
    if (!failed) {
        int64_t listed = gaps_of(list, gaps, &staying);
        Code code = rice(gaps, listed);
        failed = put_number(head, (uint64_t)list->count) || reserve(head, 8) || reserve(fields, (uint64_t)list->count);
        if (!failed) put(head, (uint64_t)(code.k | (staying ? 128 : 0)), 8);
        failed = failed || (staying && put_number(head, (uint64_t)listed));
        failed = failed || put_all(codes, fields, code, gaps, listed) || reserve(fields, (uint64_t)list->count);
        if (!failed) put_signs(fields, list);
        failed = failed || put_sizes(head, codes, fields, list, sizes, gaps);
    }
    free(sizes);
    return failed ? MEMORY : 0;
}

static int64_t assemble(const Encoder *from, uint8_t **out) {
    Bits head = {0}, codes = {0}, fields = {0};
    uint64_t used = 0, n, m, k;
    int64_t length = MEMORY;
    int failed = reserve(&head, 64) || reserve(&codes, 0) || reserve(&fields, 0);
    for (int c = 0; c < CLASSES; c++) used |= (uint64_t)(from->lists[c].count > 0) << c;
    if (!failed) put(&head, (uint64_t)from->scan.lo, 8), put(&head, used, 16);
    for (int c = 0; !failed && c < CLASSES; c++)
        if (from->lists[c].count) failed = put_class(&head, &codes, &fields, &from->lists[c]);
    failed = failed || put_number(&head, (codes.bits + 7) / 8);
    n = head.bits / 8, m = (codes.bits + 7) / 8, k = (fields.bits + 7) / 8;
    if (!failed && (*out = malloc(n + m + k))) {
        memcpy(*out, head.bytes, n), memcpy(*out + n, codes.bytes, m), memcpy(*out + n + m, fields.bytes, k);
        length = (int64_t)(n + m + k);
    }
    free(head.bytes), free(codes.bytes), free(fields.bytes);
    return length;
}

/* Length of the body, which `*out` then points to (release it), 0 if nothing changes, or MEMORY. */
API int64_t echo2_encode(const uint16_t *old, const uint16_t *new, int64_t n, int shift, int mask, uint8_t **out) {
    Encoder *to = calloc(1, sizeof *to);
    int64_t length = to ? 0 : MEMORY, changes = 0;
    if (to) begin(&to->scan, old, n, shift, mask, -1);
    for (int64_t at = 0; !length && at < n; at += PIECE)
        length = scan_changes(to, old + at, new + at, (int)(n - at < PIECE ? n - at : PIECE));
    for (int c = 0; to && c < CLASSES; c++) changes += to->lists[c].count;
    if (!length && changes) length = assemble(to, out);
    for (int c = 0; to && c < CLASSES; c++) free(to->lists[c].changes);
    free(to);
    return length;
}

API void echo2_release(uint8_t *body) { free(body); }

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
    const uint8_t *codes, *fields; /* eight bytes may be read after the end of each */
    uint64_t code, field, code_end, field_end; /* bits */
} Numbers;

static inline int unary_of(Numbers *from, uint64_t *value) {
    uint64_t start = from->code;
    while (from->code < from->code_end) {
        uint64_t word = load64(from->codes + (from->code >> 3)) >> (from->code & 7);
        if (word) {
            from->code += (uint64_t)__builtin_ctzll(word) + 1;
            *value = from->code - start - 1;
            return from->code <= from->code_end ? 0 : CODES;
        }
        from->code += 64 - (from->code & 7);
    }
    return CODES;
}

static inline uint64_t field_of(Numbers *from, int width) {
    uint64_t word = load64(from->fields + (from->field >> 3)) >> (from->field & 7);
    from->field += (uint64_t)width;
    return word & (((uint64_t)1 << width) - 1);
}

/* `count` numbers below `limit`, which is at most 2^31. */
static int all_of(Numbers *from, Code code, uint64_t count, uint64_t limit, int refusal, uint32_t *out) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t q, width, value;
        if (unary_of(from, &q)) return CODES;
        if (code.elias && q > 16) return STEP;
        width = code.elias ? q + (uint64_t)code.k : (uint64_t)code.k;
        if (width > from->field_end - from->field) return FIELDS;
        value = field_of(from, (int)width);
        if (code.elias) value += ((uint64_t)1 << width) - ((uint64_t)1 << code.k);
        else if (q >= limit) return refusal;
        else value |= q << code.k;
        if (value >= limit) return refusal;
        out[i] = (uint32_t)value;
    }
    return 0;
}

/* Gaps become places, in place; each below `limit`. */
static int places_of(uint32_t *gaps, uint64_t count, uint64_t limit) {
    uint64_t next = 0;
    for (uint64_t i = 0; i < count; i++) {
        next += gaps[i];
        if (next >= limit) return RANK;
        gaps[i] = (uint32_t)next++;
    }
    return 0;
}

static int ranks_of(const Head *head, Numbers *from, uint64_t n, uint32_t *ranks, uint32_t *spare) {
    uint32_t *listed = head->stays ? spare : ranks;
    uint64_t count = head->stays ? head->staying : head->changes, total = head->changes + head->staying, at = 0, next = 0;
    int failed = all_of(from, head->gaps, count, n, RANK, listed);
    if (!failed) failed = places_of(listed, count, n);
    if (failed || !head->stays) return failed;
    if (total > n || (count && listed[count - 1] + (uint64_t)1 >= total)) return RANK;
    for (uint64_t rank = 0; rank < total; rank++) {
        if (next < count && listed[next] == rank) next++;
        else ranks[at++] = (uint32_t)rank;
    }
    return 0;
}

static int steps_of(const Head *head, Numbers *from, uint32_t *down, uint32_t *large, int32_t *steps) {
    uint64_t sized = head->listed ? head->large : head->changes;
    uint32_t *sizes = large + head->large;
    if (head->changes > from->field_end - from->field) return FIELDS;
    for (uint64_t i = 0; i < head->changes; i++) down[i] = (uint32_t)field_of(from, 1);
    int failed = head->listed ? all_of(from, head->large_gaps, head->large, head->changes, RANK, large) : 0;
    if (!failed && head->listed) failed = places_of(large, head->large, head->changes);
    if (!failed) failed = all_of(from, head->sizes, sized, head->listed ? 0xFFFE : 0xFFFF, STEP, sizes);
    if (failed) return failed;
    for (uint64_t i = 0; i < head->changes; i++) steps[i] = head->listed ? 1 : (int32_t)sizes[i] + 1;
    for (uint64_t i = 0; head->listed && i < sized; i++) steps[large[i]] = (int32_t)sizes[i] + 2;
    for (uint64_t i = 0; i < head->changes; i++)
        if (down[i]) steps[i] = -steps[i];
    return 0;
}

typedef struct {
    Scan scan;
    const uint32_t *ranks[CLASSES]; /* what is left of each list; its end is marked */
    const int32_t *steps[CLASSES];
    uint64_t hits[BLOCKS], common[MAX_COMMON][BLOCKS];
    uint16_t before[MAX_COMMON][BLOCKS], coarse[MAX_COMMON][BLOCKS / 16]; /* members in the piece before the block */
    int32_t moves[PIECE];
    uint16_t members[CLASSES][PIECE], found[PIECE + 64];
} Decoder;

/* Counts all classes of a piece; the few are listed in `members`. */
INLINE void count_members(Decoder *from, const uint16_t *old, int n, uint32_t *counts, const int commons) {
    Scan *scan = &from->scan;
    uint32_t seen[MAX_COMMON + 1] = {0};
    int few = 0;
    for (int b = 0; 64 * b < n; b++) {
        const uint8_t *bytes = scan->classes + 64 * b;
        uint64_t rest = elements(b, n);
        soon(old + PIECE + 64 * b);
        for (int i = 0; i < commons; i++) {
            uint64_t members = equal64(bytes, scan->common[i]);
            rest &= ~members;
            from->common[i][b] = members, from->before[i][b] = (uint16_t)seen[i];
            seen[i] += (uint32_t)ones(members);
        }
        gather64(bytes, rest, 64 * b, scan->few_classes + few, scan->few_places + few);
        few += ones(rest);
    }
    for (int i = 0; i < commons; i++) counts[scan->common[i]] = seen[i];
    for (int i = 0; i < few; i++) {
        int c = scan->few_classes[i];
        from->members[c][counts[c]++] = scan->few_places[i];
    }
}

/* The element of a common class that has this rank in the piece. */
static inline int member(const Decoder *from, int slot, uint16_t rank) {
    const uint16_t *before = from->before[slot];
    int b = 16 * (at_most(from->coarse[slot], rank) - 1);
    b += at_most(before + b, rank) - 1;
    return 64 * b + nth_bit(from->common[slot][b], (unsigned)(rank - before[b]));
}

static void find_class(Decoder *from, int c, uint32_t count) {
    const uint32_t *rank = from->ranks[c], seen = from->scan.seen[c], end = seen + count;
    const int32_t *step = from->steps[c];
    const int slot = from->scan.slot[c];
    for (; *rank < end; rank++) {
        int at = slot < MAX_COMMON ? member(from, slot, (uint16_t)(*rank - seen)) : from->members[c][*rank - seen];
        from->hits[at >> 6] |= 1ull << (at & 63);
        from->moves[at] = *step++;
    }
    from->ranks[c] = rank, from->steps[c] = step, from->scan.seen[c] = end;
}

static int find_changes(Decoder *from, const uint16_t *old, int n, uint32_t base, uint32_t *index, uint16_t *bits) {
    uint32_t counts[CLASSES] = {0};
    int found = 0, beyond = 0, blocks = (n + 63) / 64;
    classify(&from->scan, old, n);
#define COUNT(commons) count_members(from, old, n, counts, commons)
    FOR_COMMONS(from->scan.commons, COUNT)
    for (int i = 0; i < from->scan.commons; i++) {
        for (int b = blocks; b < BLOCKS; b++) from->before[i][b] = 0xFFFF;
        for (int b = 0; b < BLOCKS; b += 16) from->coarse[i][b / 16] = from->before[i][b];
    }
    memset(from->hits, 0, sizeof from->hits);
    for (int c = 0; c < CLASSES; c++) find_class(from, c, counts[c]);
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

/* Lists of all classes: `ranks` has an end mark after each class, and `spare` four numbers for each change. */
static int lists_of(
    Decoder *into, const Head *heads, Numbers *from, uint64_t n, uint32_t *ranks, int32_t *steps, uint32_t *spare
) {
    static const uint32_t nothing = END;
    for (int c = 0; c < CLASSES; c++) {
        into->ranks[c] = &nothing;
        if (!heads[c].changes) continue;
        int failed = ranks_of(&heads[c], from, n, ranks, spare);
        if (!failed) failed = steps_of(&heads[c], from, spare, spare + heads[c].changes, steps);
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

/* Changes found, in ascending order, in `index` and `bits`, which hold `room`; or the reason of a refusal. */
API int64_t echo2_decode(
    const uint8_t *body, int64_t length, const uint16_t *old, int64_t n, int shift, int mask, uint32_t *index,
    uint16_t *bits, int64_t room
) {
    Bytes data = {body, body + length};
    Head heads[CLASSES];
    uint64_t changes = 0, numbers = 0, most = 0, codes;
    memset(heads, 0, sizeof heads);
    if (length < 3 || body[0] > mask || n > 0x7FFFFFFF) return HEADS;
    data.at += 3;
    for (int c = 0; c < CLASSES; c++) {
        Head *head = &heads[c];
        if (!((body[1] | body[2] << 8) >> c & 1)) continue;
        if (head_of(&data, head)) return HEADS;
        uint64_t listed = head->stays ? head->staying : head->changes, sized = head->listed ? head->large : head->changes;
        uint64_t own = listed + head->changes + (head->listed ? head->large : 0) + sized;
        changes += head->changes, numbers += own;
        if (own > most) most = own;
    }
    if (!changes || changes > (uint64_t)n || changes != (uint64_t)room) return HEADS;
    if (numbers > 8 * (uint64_t)(data.end - data.at)) return HEADS;
    if (number_of(&data, &codes) || codes > (uint64_t)(data.end - data.at)) return CODES;
    uint64_t rest = (uint64_t)(data.end - data.at) - codes;
    /* A copy of codes and fields with eight spare bytes after each. */
    uint8_t *copy = calloc(1, codes + rest + 32);
    uint32_t *ranks = malloc((changes + CLASSES) * sizeof *ranks), *spare = malloc((most + 1) * sizeof *spare);
    int32_t *steps = malloc(changes * sizeof *steps);
    Decoder *from = calloc(1, sizeof *from);
    int64_t found = MEMORY;
    if (copy && ranks && spare && steps && from) {
        memcpy(copy, data.at, codes), memcpy(copy + codes + 16, data.at + codes, rest);
        Numbers numbers_of = {copy, copy + codes + 16, 0, 0, 8 * codes, 8 * rest};
        begin(&from->scan, old, n, shift, mask, body[0]);
        found = lists_of(from, heads, &numbers_of, (uint64_t)n, ranks, steps, spare);
        if (!found) found = scan_all(from, old, n, (int64_t)changes, index, bits);
    }
    free(copy), free(ranks), free(spare), free(steps), free(from);
    return found;
}

/* 2: AVX-512 with VBMI2, 1: AVX2 with BMI2, 0: neither. */
API int echo2_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
    if (avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi2")) return 2;
    return avx2;
#else
    return 0;
#endif
}
