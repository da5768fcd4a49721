#include "kernels/matmul.h"

#include <eigen3/Eigen/Core>

#ifdef PSD_ONEDNN
#include <dnnl.h>

// Functions of the OpenMP run-time library that oneDNN uses. They are declared here because omp.h
// comes only with gcc, and clang builds do not have it.
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);
#endif

namespace psd::kernels {
namespace {

template <typename T>
void Scale(T beta, T* c, int64_t count) {
  for (int64_t i = 0; i < count; ++i) c[i] = beta == 0 ? T{0} : beta * c[i];
}

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <typename T>
Eigen::Map<const Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>> View(const MatrixView<T>& view,
                                                                         int64_t rows,
                                                                         int64_t cols) {
  return {view.data, view.transposed ? cols : rows, view.transposed ? rows : cols,
          Eigen::OuterStride<>(view.stride)};
}

template <typename A, typename T>
void AddProduct(const A& a, const MatrixView<T>& b, int64_t k, int64_t n,
                Eigen::Map<Matrix<T>>& c) {
  if (b.transposed) {
    c.noalias() += a * View(b, k, n).transpose();
  } else {
    c.noalias() += a * View(b, k, n);
  }
}

template <typename T>
void EigenGemm(int64_t m, int64_t n, int64_t k, const MatrixView<T>& a, const MatrixView<T>& b,
               T beta, T* c) {
  if (m == 0 || n == 0) return;
  Scale(beta, c, beta == 1 ? 0 : m * n);
  if (k == 0) return;
  Eigen::Map<Matrix<T>> out(c, m, n);
  if (a.transposed) {
    AddProduct(View(a, m, k).transpose(), b, k, n, out);
  } else {
    AddProduct(View(a, m, k), b, k, n, out);
  }
}

#ifdef PSD_ONEDNN

// Keeps oneDNN on the calling thread for as long as it lives. OpenMP keeps the number of threads
// per thread, so other threads are not affected.
class OneThread {
 public:
  OneThread() : previous_(omp_get_max_threads()) {
    if (previous_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (previous_ != 1) omp_set_num_threads(previous_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int previous_;
};

void FloatGemm(int64_t m, int64_t n, int64_t k, const MatrixView<float>& a,
               const MatrixView<float>& b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) return Scale(beta, c, m * n);
  OneThread one_thread;
  // The result is not checked: this fails only for arguments that were checked above.
  dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.stride,
             b.data, b.stride, beta, c, n);
}

#else

constexpr auto& FloatGemm = EigenGemm<float>;

#endif

}  // namespace

void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<float> a, MatrixView<float> b, float beta,
          float* c) {
  FloatGemm(m, n, k, a, b, beta, c);
}

void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<double> a, MatrixView<double> b, double beta,
          double* c) {
  EigenGemm(m, n, k, a, b, beta, c);
}

}  // namespace psd::kernels
