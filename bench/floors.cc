#include "bench/floors.h"

#include <sys/mman.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/floors.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace psd::bench::HWY_NAMESPACE {

constexpr size_t kLanes = 16;

float StreamRead(const float* HWY_RESTRICT a, size_t size) {
  float sums[kLanes] = {};
  for (size_t i = 0; i < size; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) sums[j] += a[i + j];
  }
  float sum = 0;
  for (float lane : sums) sum += lane;
  return sum;
}

void StreamR2W1(float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t size) {
  for (size_t i = 0; i < size; ++i) a[i] -= 1e-9f * b[i];
}

void StreamR4W3(float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
                float* HWY_RESTRICT d, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const float s = c[i] + 1e-9f * b[i];
    const float t = d[i] + 1e-9f * s;
    c[i] = s;
    d[i] = t;
    a[i] -= 1e-9f * t;
  }
}

// `next` is written past the caches and everything read is prefetched, as in the kernels
// (kernels/optim/optim-inl.h), so that only the memory limits the speed.
template <bool kC, bool kD>
HWY_INLINE void Update(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                       float* HWY_RESTRICT c, float* HWY_RESTRICT d, float* HWY_RESTRICT next,
                       size_t size) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<float, kLanes> df;
  constexpr size_t kAhead = 256;
  const auto tiny = hn::Set(df, 1e-9f);
  for (size_t i = 0; i < size; i += kLanes) {
    hwy::Prefetch(a + i + kAhead);
    hwy::Prefetch(b + i + kAhead);
    if (kC) hwy::Prefetch(c + i + kAhead);
    if (kD) hwy::Prefetch(d + i + kAhead);
    for (size_t j = i; j < i + kLanes; j += hn::Lanes(df)) {
      auto x = hn::Load(df, b + j);
      if (kC) {
        x = hn::MulAdd(x, tiny, hn::Load(df, c + j));
        hn::Store(x, df, c + j);
      }
      if (kD) {
        x = hn::MulAdd(x, tiny, hn::Load(df, d + j));
        hn::Store(x, df, d + j);
      }
      hn::Stream(hn::MulAdd(x, tiny, hn::Load(df, a + j)), df, next + j);
    }
  }
  hwy::FlushStream();
}

void UpdateR2W1(const float* a, const float* b, float* next, size_t size) {
  Update<false, false>(a, b, nullptr, nullptr, next, size);
}
void UpdateR3W2(const float* a, const float* b, float* c, float* next, size_t size) {
  Update<true, false>(a, b, c, nullptr, next, size);
}
void UpdateR4W3(const float* a, const float* b, float* c, float* d, float* next, size_t size) {
  Update<true, true>(a, b, c, d, next, size);
}

float StepMath(const float* HWY_RESTRICT p, const float* HWY_RESTRICT c, float* HWY_RESTRICT g,
               size_t size) {
  float sums[kLanes] = {};
  for (size_t i = 0; i < size; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      sums[j] += p[i + j] * c[i + j];
      g[i + j] = 0.5f * c[i + j];
    }
  }
  float sum = 0;
  for (float lane : sums) sum += lane;
  return sum;
}

float StepMathUnfused(const float* HWY_RESTRICT p, const float* HWY_RESTRICT c,
                      float* HWY_RESTRICT product, float* HWY_RESTRICT g, size_t size) {
  for (size_t i = 0; i < size; ++i) product[i] = p[i] * c[i];
  const float sum = StreamRead(product, size);
  for (size_t i = 0; i < size; ++i) g[i] = 0.5f * c[i];
  return sum;
}

}  // namespace psd::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::bench {

HWY_EXPORT(StreamRead);
HWY_EXPORT(StreamR2W1);
HWY_EXPORT(StreamR4W3);
HWY_EXPORT(UpdateR2W1);
HWY_EXPORT(UpdateR3W2);
HWY_EXPORT(UpdateR4W3);
HWY_EXPORT(StepMath);
HWY_EXPORT(StepMathUnfused);

float StreamRead(const float* a, size_t size) {
  return HWY_DYNAMIC_DISPATCH(StreamRead)(a, size);
}

void StreamR2W1(float* a, const float* b, size_t size) {
  HWY_DYNAMIC_DISPATCH(StreamR2W1)(a, b, size);
}

void StreamR4W3(float* a, const float* b, float* c, float* d, size_t size) {
  HWY_DYNAMIC_DISPATCH(StreamR4W3)(a, b, c, d, size);
}

void UpdateR2W1(const float* a, const float* b, float* next, size_t size) {
  HWY_DYNAMIC_DISPATCH(UpdateR2W1)(a, b, next, size);
}

void UpdateR3W2(const float* a, const float* b, float* c, float* next, size_t size) {
  HWY_DYNAMIC_DISPATCH(UpdateR3W2)(a, b, c, next, size);
}

void UpdateR4W3(const float* a, const float* b, float* c, float* d, float* next, size_t size) {
  HWY_DYNAMIC_DISPATCH(UpdateR4W3)(a, b, c, d, next, size);
}

float StepMath(const float* p, const float* c, float* g, size_t size) {
  return HWY_DYNAMIC_DISPATCH(StepMath)(p, c, g, size);
}

float StepMathUnfused(const float* p, const float* c, float* product, float* g, size_t size) {
  return HWY_DYNAMIC_DISPATCH(StepMathUnfused)(p, c, product, g, size);
}

MappedFloats::MappedFloats(size_t size)
    : size_(size),
      data_(static_cast<float*>(mmap(nullptr, size * sizeof(float), PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  madvise(data_, size * sizeof(float), MADV_HUGEPAGE);
  for (size_t i = 0; i < size; ++i) data_[i] = 0.5f + 1e-3f * static_cast<float>(i & 7);
}

MappedFloats::~MappedFloats() {
  munmap(data_, size_ * sizeof(float));
}

void Consume(float value) {
  asm volatile("" : : "x"(value) : "memory");
}

}  // namespace psd::bench
#endif
