// Matrix products of CUDA devices, on the fakes of CUDA and of cublasLt.

#include "core/device/cuda/matrix_products.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_stream.h"
#include "gmock/gmock.h"
#include "tests/core/device/cuda/cuda_suite.h"
#include "tests/core/device/cuda/fake_cuda.h"

namespace psd::testing {
namespace {

using cuda::MatrixOperand;
using cuda::MatrixProduct;
using cuda::MatrixProducts;
using ::testing::HasSubstr;

constexpr char kFakeLibrary[] = "tests/core/device/cuda/libfake_cublas_lt.so";
constexpr char kHeuristic[] = "cublasLtMatmulAlgoGetHeuristic";
constexpr size_t kWorkspaceBytes = 1024;  // what the fake's workspace counts for

class MatrixProductsTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(kFakeLibrary); }

  void Open(const std::string& library, size_t budget_bytes = kTestBudget,
            bool allow_tf32 = false) {
    device_.reset();
    ResetFakeCuda();
    CudaDeviceOptions options;
    options.budget_bytes = budget_bytes;
    options.allow_tf32 = allow_tf32;
    options.cublas_lt = library;
    device_ = OpenDevice(options);
  }

  CudaStream& stream() { return device_->default_stream(); }
  absl::Status Add(const MatrixProduct& product) {
    return device_->matrix_products().Add(stream(), product);
  }
  template <typename T>
  std::shared_ptr<Block> There(const std::vector<T>& elements) {
    const size_t bytes = elements.size() * sizeof(T);
    auto block = stream().Allocate(bytes).value();
    const auto copied =
        device_->CopyIn(block->data(), reinterpret_cast<const std::byte*>(elements.data()), bytes);
    EXPECT_TRUE(copied.ok()) << copied;
    return block;
  }
  template <typename T>
  std::vector<T> Read(const Block& block) {
    std::vector<T> elements(block.size() / sizeof(T));
    const auto copied =
        device_->CopyOut(reinterpret_cast<std::byte*>(elements.data()), block.data(), block.size());
    EXPECT_TRUE(copied.ok()) << copied;
    return elements;
  }
  // Multiplies two numbers on the device's default stream.
  absl::Status MultiplyNumbers() {
    return Add({false, 1, 1, 1, {a_->data()}, {b_->data()}, false, c_->data()});
  }
  void MakeNumbers() {
    a_ = There<float>({3});
    b_ = There<float>({5});
    c_ = There<float>({7});
  }

  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<Block> a_, b_, c_;
};

// Returns the elements of a matrix in memory, with gaps of NaN behind its rows.
template <typename T>
std::vector<T> Matrix(int64_t rows, int64_t cols, int64_t stride, int first) {
  std::vector<T> all(static_cast<size_t>(rows * stride), std::numeric_limits<T>::quiet_NaN());
  for (int64_t i = 0; i < rows * cols; ++i)
    all[static_cast<size_t>(i / cols * stride + i % cols)] =
        static_cast<T>((i * 7 + first) % 11 - 5);
  return all;
}

// All these products are exact.
template <typename T>
std::vector<T> Product(int64_t m, int64_t n, int64_t k, const std::vector<T>& a, int64_t a_row,
                       int64_t a_col, const std::vector<T>& b, int64_t b_row, int64_t b_col,
                       T old) {
  std::vector<T> c(static_cast<size_t>(m * n), old);
  for (int64_t i = 0; i < m * n * k; ++i) {
    const int64_t row = i / k / n, col = i / k % n, at = i % k;
    c[static_cast<size_t>(row * n + col)] += a[static_cast<size_t>(row * a_row + at * a_col)] *
                                             b[static_cast<size_t>(at * b_row + col * b_col)];
  }
  return c;
}

TEST_F(MatrixProductsTest, EveryLayoutIsMultiplied) {
  const auto check = [&](auto zero, bool turned_a, bool turned_b, bool adds, int64_t gap) {
    using T = decltype(zero);
    const int64_t m = 3, n = 4, k = 5;
    const int64_t a_stride = (turned_a ? m : k) + gap, b_stride = (turned_b ? k : n) + 2 * gap;
    const auto a = Matrix<T>(turned_a ? k : m, turned_a ? m : k, a_stride, 1);
    const auto b = Matrix<T>(turned_b ? n : k, turned_b ? k : n, b_stride, 2);
    const auto a_there = There(a), b_there = There(b), c = There(std::vector<T>(12, 100));
    ASSERT_TRUE(Add({sizeof(T) == sizeof(double),
                     m,
                     n,
                     k,
                     {a_there->data(), a_stride, turned_a},
                     {b_there->data(), b_stride, turned_b},
                     adds,
                     c->data()})
                    .ok());
    EXPECT_EQ(Read<T>(*c),
              Product<T>(m, n, k, a, turned_a ? 1 : a_stride, turned_a ? a_stride : 1, b,
                         turned_b ? 1 : b_stride, turned_b ? b_stride : 1, adds ? 100 : 0))
        << sizeof(T) << turned_a << turned_b << adds << gap;
  };
  for (int i = 0; i < 16; ++i) {
    check(float{}, i & 1, i & 2, i & 4, i & 8 ? 3 : 0);
    check(double{}, i & 1, i & 2, i & 4, i & 8 ? 3 : 0);
  }
}

// The fake rounds as TF32 does; it has 10 bits behind the point.
TEST_F(MatrixProductsTest, OnlyADeviceThatMayUseTf32RoundsF32AndNoneRoundsF64) {
  constexpr float kNear = 1 + 1.0f / 4096;
  for (const bool allow_tf32 : {false, true}) {
    a_ = b_ = c_ = nullptr;
    Open(kFakeLibrary, kTestBudget, allow_tf32);
    a_ = There<float>({kNear});
    b_ = There<float>({1});
    c_ = There<float>({0});
    ASSERT_TRUE(MultiplyNumbers().ok());
    EXPECT_EQ(Read<float>(*c_), std::vector<float>{allow_tf32 ? 1 : kNear});
    const auto wide = There<double>({kNear}), one = There<double>({1}), result = There<double>({0});
    ASSERT_TRUE(Add({true, 1, 1, 1, {wide->data()}, {one->data()}, false, result->data()}).ok());
    EXPECT_EQ(Read<double>(*result), std::vector<double>{kNear});
  }
}

TEST_F(MatrixProductsTest, ASumOfNothingIsZeroAndAnEmptyResultNeedsNoLibrary) {
  Open("/nowhere/libcublasLt.so");
  const auto c = There<double>({1, 2});
  ASSERT_TRUE(Add({true, 1, 2, 0, {}, {}, true, c->data()}).ok());
  EXPECT_EQ(Read<double>(*c), (std::vector<double>{1, 2}));
  ASSERT_TRUE(Add({true, 1, 2, 0, {}, {}, false, c->data()}).ok());
  EXPECT_EQ(Read<double>(*c), (std::vector<double>{0, 0}));
  EXPECT_TRUE(Add({true, 0, 2, 3, {}, {}, false, nullptr}).ok());
  EXPECT_TRUE(Add({true, 2, 0, 3, {}, {}, false, nullptr}).ok());
}

// The fake computes when somebody waits.
TEST_F(MatrixProductsTest, AProductIsWorkOfItsStream) {
  MakeNumbers();
  Stream& other = *device_->AddStream().value();
  ASSERT_TRUE(MultiplyNumbers().ok());
  const auto early = StartReading(other, *c_);
  ASSERT_TRUE(RecordOn(other)->Wait().ok());
  EXPECT_EQ(*reinterpret_cast<const float*>(early->data()), 7);
  ASSERT_TRUE(other.WaitFor(RecordOn(stream())).ok());
  const auto late = StartReading(other, *c_);
  ASSERT_TRUE(RecordOn(other)->Wait().ok());
  EXPECT_EQ(*reinterpret_cast<const float*>(late->data()), 15);
}

TEST_F(MatrixProductsTest, TheAlgorithmIsChosenOnceForEachKindOfProduct) {
  const auto a = There(std::vector<float>(16, 1)), b = There(std::vector<float>(16, 2));
  const auto c = There(std::vector<float>(16, 0));
  auto* const skewed = reinterpret_cast<float*>(a->data()) + 1;
  const auto add = [&](int64_t m, const void* first, int64_t stride, bool adds) {
    ASSERT_TRUE(Add({false, m, 2, 2, {first, stride}, {b->data(), 2}, adds, c->data()}).ok());
  };
  add(2, a->data(), 2, false);
  add(2, a->data(), 2, true);
  EXPECT_EQ(FakeCalls(kHeuristic), 1);
  add(3, a->data(), 2, false);
  add(2, a->data(), 3, false);
  EXPECT_EQ(FakeCalls(kHeuristic), 3);
  // The fake refuses an address that is less aligned than the algorithm was promised.
  add(2, skewed, 2, false);
  EXPECT_EQ(FakeCalls(kHeuristic), 4);
  EXPECT_EQ(FakeCalls("cublasLtMatmul"), 5);
}

TEST_F(MatrixProductsTest, TheChoicesAreBounded) {
  const auto most = static_cast<int64_t>(MatrixProducts::kMostPlans);
  const auto a = There(std::vector<float>(2, 1)), c = There(std::vector<float>(1, 0));
  const auto add = [&](int64_t stride) {
    ASSERT_TRUE(Add({false, 1, 1, 1, {a->data(), stride}, {a->data(), 1}, false, c->data()}).ok());
  };
  for (int64_t stride = 1; stride <= most; ++stride) add(stride);
  const int full = LivingFakeObjects();
  add(most + 1);
  EXPECT_LT(LivingFakeObjects(), full);
  EXPECT_EQ(FakeCalls(kHeuristic), most + 1);
  add(1);
  EXPECT_EQ(FakeCalls(kHeuristic), most + 2);
  EXPECT_EQ(Read<float>(*c), std::vector<float>{1});
}

TEST_F(MatrixProductsTest, TheWorkspaceIsInTheBudget) {
  MakeNumbers();
  const size_t used = device_->used_bytes();
  auto rest = stream().Allocate(device_->budget_bytes() - used - kWorkspaceBytes / 2).value();
  const absl::Status refused = MultiplyNumbers();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("cuda:0 has no room for 1000 bytes more"));
  EXPECT_EQ(Read<float>(*c_), std::vector<float>{7});
  rest.reset();
  ASSERT_TRUE(MultiplyNumbers().ok());
  EXPECT_EQ(device_->used_bytes(), used);
  EXPECT_EQ(Read<float>(*c_), std::vector<float>{15});
}

// The fake's workspace would take 1024 bytes.
TEST_F(MatrixProductsTest, TheWorkspaceIsASixteenthOfASmallBudget) {
  constexpr size_t kSmallBudget = 8192;
  Open(kFakeLibrary, kSmallBudget);
  MakeNumbers();
  const auto rest = stream()
                        .Allocate(kSmallBudget - device_->used_bytes() -
                                  kSmallBudget / MatrixProducts::kBudgetParts)
                        .value();
  const absl::Status added = MultiplyNumbers();
  EXPECT_TRUE(added.ok()) << added;
  EXPECT_EQ(Read<float>(*c_), std::vector<float>{15});
}

TEST_F(MatrixProductsTest, ADeviceLeavesNothingOfTheLibraryBehind) {
  MakeNumbers();
  ASSERT_TRUE(MultiplyNumbers().ok());
  a_.reset();
  b_.reset();
  c_.reset();
  device_.reset();
  EXPECT_EQ(LivingFakeObjects(), 0);
}

// ---- errors

void ExpectNoCublas(const absl::Status& status, const std::string& why) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("cuda:0 cannot multiply matrices without cublasLt: "));
  EXPECT_THAT(status.message(), HasSubstr(why));
  EXPECT_THAT(GetDetail(status)->remedy, HasSubstr("LD_LIBRARY_PATH"));
}

TEST_F(MatrixProductsTest, WithoutTheLibraryOnlyProductsAreRefused) {
  Open("/nowhere/libcublasLt.so");
  MakeNumbers();
  ExpectNoCublas(MultiplyNumbers(), "/nowhere/libcublasLt.so: cannot open");
  EXPECT_TRUE(device_->health().ok());
  EXPECT_EQ(Read<float>(*c_), std::vector<float>{7});
}

TEST_F(MatrixProductsTest, AnotherLibraryAndAnOldOneAreRefused) {
  Open("libm.so.6");
  MakeNumbers();
  ExpectNoCublas(MultiplyNumbers(), "libm.so.6 has no function cublasLtGetVersion");
  a_ = b_ = c_ = nullptr;
  Open(kFakeLibrary);
  MakeNumbers();
  FailNextCall("cublasLtGetVersion", 120304);
  ExpectNoCublas(MultiplyNumbers(), "libfake_cublas_lt.so has version 12.3.4, and this psd needs " +
                                        std::to_string(CUBLAS_VER_MAJOR) + ".x");
  EXPECT_TRUE(MultiplyNumbers().ok());  // the library is asked again
}

TEST_F(MatrixProductsTest, EveryCallThatFailsIsAnErrorAndChangesNothing) {
  for (const char* function :
       {"cublasLtCreate", "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul"}) {
    a_ = b_ = c_ = nullptr;
    Open(kFakeLibrary);
    MakeNumbers();
    FailNextCall(function, CUBLAS_STATUS_INTERNAL_ERROR);
    const absl::Status refused = MultiplyNumbers();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInternal) << function;
    EXPECT_THAT(refused.message(), HasSubstr("cuda:0 refused "));
    EXPECT_THAT(refused.message(), HasSubstr("CUBLAS_STATUS_OF_THE_FAKE (14)"));
    EXPECT_TRUE(device_->health().ok()) << function;
    EXPECT_EQ(Read<float>(*c_), std::vector<float>{7}) << function;
    ASSERT_TRUE(MultiplyNumbers().ok()) << function;
    EXPECT_EQ(Read<float>(*c_), std::vector<float>{15}) << function;
    a_ = b_ = c_ = nullptr;
    device_.reset();
    EXPECT_EQ(LivingFakeObjects(), 0) << function;
  }
}

// CUBLAS_STATUS_NOT_INITIALIZED is what the library returns when CUDA refuses it something.
TEST_F(MatrixProductsTest, ALibraryThatFindsNoMemoryNamesDeviceAndBudget) {
  MakeNumbers();
  for (const auto error : {CUBLAS_STATUS_ALLOC_FAILED, CUBLAS_STATUS_NOT_INITIALIZED}) {
    FailNextCall("cublasLtCreate", error);
    const absl::Status refused = MultiplyNumbers();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_THAT(refused.message(),
                HasSubstr("cuda:0 has too little memory outside its budget of 262144 bytes for "
                          "what cublasLt needs for cublasLtCreate: 1047040 bytes are free"));
    EXPECT_TRUE(device_->health().ok());
  }
  FailNextCall("cublasLtCreate", CUBLAS_STATUS_NOT_INITIALIZED);
  FailNextCall("cudaStreamQuery", cudaErrorIllegalAddress);
  EXPECT_EQ(MultiplyNumbers().code(), absl::StatusCode::kUnavailable);
}

TEST_F(MatrixProductsTest, ErrorsNameTheProduct) {
  MakeNumbers();
  FailNextCall("cublasLtMatmul", CUBLAS_STATUS_ALLOC_FAILED);
  const absl::Status refused = MultiplyNumbers();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(),
              HasSubstr("cuda:0 has too little memory outside its budget of 262144 bytes for what "
                        "cublasLt needs for the product of f32[1, 1] and [1, 1] on stream 0 of "
                        "cuda:0: 1046016 bytes are free"));
  // cublasLt says nothing of the device, but CUDA does.
  FailNextCall("cublasLtMatmul", CUBLAS_STATUS_EXECUTION_FAILED);
  FailNextCall("cudaStreamQuery", cudaErrorIllegalAddress);
  const absl::Status lost = MultiplyNumbers();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(lost.message(), HasSubstr("cuda:0 is lost: the product of f32[1, 1] and [1, 1]"));
  EXPECT_EQ(MultiplyNumbers(), lost);
}

}  // namespace
}  // namespace psd::testing
