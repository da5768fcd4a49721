#include "kernels/matmul.h"

#include <dnnl.h>

#include <eigen3/Eigen/Core>

// Functions of the OpenMP run-time library that oneDNN uses. They are declared here because omp.h
// comes only with gcc, and clang builds do not have it.
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);

namespace psd::kernels {
namespace {

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

template <typename T>
void Scale(T beta, T* c, int64_t count) {
  for (int64_t i = 0; i < count; ++i) c[i] = beta == 0 ? T{0} : beta * c[i];
}

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Input = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

Input View(const MatrixView<double>& view, int64_t rows, int64_t cols) {
  return Input(view.data, view.transposed ? cols : rows, view.transposed ? rows : cols,
               Eigen::OuterStride<>(view.stride));
}

template <typename A>
void AddProduct(const A& a, const MatrixView<double>& b, int64_t k, int64_t n,
                Eigen::Map<Matrix>& c) {
  if (b.transposed) {
    c.noalias() += a * View(b, k, n).transpose();
  } else {
    c.noalias() += a * View(b, k, n);
  }
}

}  // namespace

void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<float> a, MatrixView<float> b, float beta,
          float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) return Scale(beta, c, m * n);
  OneThread one_thread;
  // The result is not checked: this fails only for arguments that were checked above.
  dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.stride,
             b.data, b.stride, beta, c, n);
}

void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<double> a, MatrixView<double> b, double beta,
          double* c) {
  if (m == 0 || n == 0) return;
  Scale(beta, c, beta == 1 ? 0 : m * n);
  if (k == 0) return;
  Eigen::Map<Matrix> out(c, m, n);
  if (a.transposed) {
    AddProduct(View(a, m, k).transpose(), b, k, n, out);
  } else {
    AddProduct(View(a, m, k), b, k, n, out);
  }
}

}  // namespace psd::kernels
