#include "tests/core/autograd/legal_calls.h"

#include <cstdint>

#include "core/tensor/tensor.h"

namespace psd::testing {

std::vector<LegalCall> LegalCalls() {
  const Variable a{Tensor::Of<float>(Shape{2, 3}, {1, 2, 3, 4, 5, 6})};
  const Variable b{Tensor::Of<float>(Shape{3}, {1, 2, 3})};
  const Variable square{Tensor::Of<float>(Shape{3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9})};
  const Variable labels{Tensor::Of<int64_t>(Shape{2}, {0, 2})};
  const std::vector<int64_t> shape = {4, 5};
  return {
      {"add", {a, b}, {}},
      {"sub", {a, b}, {}},
      {"mul", {a, b}, {}},
      {"div", {a, b}, {}},
      {"add_scalar", {a}, {{"value", 1.5}}},
      {"sub_scalar", {a}, {{"value", 1.5}}},
      {"rsub_scalar", {a}, {{"value", int64_t{1}}}},
      {"mul_scalar", {a}, {{"value", 1.5}}},
      {"div_scalar", {a}, {{"value", 1.5}}},
      {"rdiv_scalar", {a}, {{"value", 1.5}}},
      {"matmul", {a, square}, {}},
      {"linear", {a, square}, {}},
      {"linear", {a, square, b}, {}},
      {"neg", {a}, {}},
      {"relu", {a}, {}},
      {"sigmoid", {a}, {}},
      {"tanh", {a}, {}},
      {"exp", {a}, {}},
      {"log", {a}, {}},
      {"sqrt", {a}, {}},
      {"softmax", {a}, {}},
      {"log_softmax", {a}, {}},
      {"sum", {a}, {}},
      {"sum", {a}, {{"axis", int64_t{-1}}}},
      {"sum", {a}, {{"axis", int64_t{0}}, {"keepdim", int64_t{1}}}},
      {"mean", {a}, {}},
      {"mean", {a}, {{"axis", int64_t{1}}}},
      {"cross_entropy", {a, labels}, {}},
      {"mse", {a, a}, {}},
      {"embedding", {a, Variable(Tensor::Of<int64_t>({2, 2}, {0, 1, 1, 0}))}, {}},
      {"detach", {a}, {}},
      {"reshape", {a}, {{"shape", std::vector<int64_t>{3, -1}}}},
      {"transpose", {a}, {{"axis0", int64_t{0}}, {"axis1", int64_t{1}}}},
      {"slice", {a}, {{"axis", int64_t{1}}, {"begin", int64_t{1}}, {"end", int64_t{3}}}},
      {"concat", {a, square}, {{"axis", int64_t{0}}}},
      {"broadcast_to", {b}, {{"shape", std::vector<int64_t>{2, 3}}}},
      {"cast", {a}, {{"dtype", int64_t{2}}}},
      {"zeros", {}, {{"shape", shape}}},
      {"full", {}, {{"shape", shape}, {"value", 2.0}, {"dtype", int64_t{3}}}},
      {"uniform", {}, {{"shape", shape}, {"low", -1.0}, {"high", 1.0}, {"seed", int64_t{7}}}},
      {"normal",
       {},
       {{"shape", shape},
        {"mean", 0.0},
        {"deviation", 1.0},
        {"seed", int64_t{7}},
        {"dtype", int64_t{2}}}},
  };
}

}  // namespace psd::testing
