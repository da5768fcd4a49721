#pragma once

// Arithmetic on variables: the functions of core/tensor/ops/elementwise.h, with history. The
// gradient of a broadcast argument is summed over the repeated axes, to the argument's shape.
// Errors travel in the result (variable.h).

#include "core/autograd/variable.h"

namespace psd {

Variable Add(const Variable& a, const Variable& b);
Variable Sub(const Variable& a, const Variable& b);
Variable Mul(const Variable& a, const Variable& b);
Variable Div(const Variable& a, const Variable& b);

Variable Add(const Variable& a, double b);
Variable Sub(const Variable& a, double b);
Variable Sub(double a, const Variable& b);
Variable Mul(const Variable& a, double b);
Variable Div(const Variable& a, double b);
Variable Div(double a, const Variable& b);

Variable Neg(const Variable& x);

inline Variable operator+(const Variable& a, const Variable& b) {
  return Add(a, b);
}
inline Variable operator-(const Variable& a, const Variable& b) {
  return Sub(a, b);
}
inline Variable operator*(const Variable& a, const Variable& b) {
  return Mul(a, b);
}
inline Variable operator/(const Variable& a, const Variable& b) {
  return Div(a, b);
}
inline Variable operator+(const Variable& a, double b) {
  return Add(a, b);
}
inline Variable operator+(double a, const Variable& b) {
  return Add(b, a);
}
inline Variable operator-(const Variable& a, double b) {
  return Sub(a, b);
}
inline Variable operator-(double a, const Variable& b) {
  return Sub(a, b);
}
inline Variable operator*(const Variable& a, double b) {
  return Mul(a, b);
}
inline Variable operator*(double a, const Variable& b) {
  return Mul(b, a);
}
inline Variable operator/(const Variable& a, double b) {
  return Div(a, b);
}
inline Variable operator/(double a, const Variable& b) {
  return Div(a, b);
}
inline Variable operator-(const Variable& x) {
  return Neg(x);
}

}  // namespace psd
