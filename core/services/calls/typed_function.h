#pragma once

// Registered functions and methods with C++ arguments and results instead of Values.
//
//   absl::StatusOr<Tensor> Scale(const Tensor& x, double factor);
//   struct Counter : psd::Object { absl::StatusOr<int64_t> Add(int64_t amount); … };
//
//   functions.Register("scale", Typed(Scale));
//   functions.RegisterMethod<Counter>("counter.add", TypedMethod(&Counter::Add));
//
// A parameter is a bool, int64_t, double (which accepts an int), std::string, Variable, Tensor,
// RRef or Value, by value or const reference. The first parameter may be a const FunctionCall&. The
// result is absl::Status (no value), absl::StatusOr<store::Values>, or absl::StatusOr of a type
// that converts to a Value. A call with other arguments is answered INVALID_ARGUMENT, naming the
// first wrong argument, and the function does not run. Everything here is stateless and
// thread-safe.

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/variable.h"
#include "core/rref/rref.h"
#include "core/services/calls/functions.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"

namespace psd::services {

// Returns `value` as a T. Errors: INVALID_ARGUMENT naming its kind and the kind wanted.
template <typename T>
absl::StatusOr<T> ReadValue(const store::Value& value) = delete;
template <>
absl::StatusOr<bool> ReadValue(const store::Value& value);
template <>
absl::StatusOr<int64_t> ReadValue(const store::Value& value);
template <>
absl::StatusOr<double> ReadValue(const store::Value& value);
template <>
absl::StatusOr<std::string> ReadValue(const store::Value& value);
template <>
absl::StatusOr<Variable> ReadValue(const store::Value& value);
template <>
absl::StatusOr<Tensor> ReadValue(const store::Value& value);
template <>
absl::StatusOr<rref::RRef> ReadValue(const store::Value& value);
template <>
inline absl::StatusOr<store::Value> ReadValue(const store::Value& value) {
  return value;
}

namespace internal {

absl::Status WrongCount(size_t wanted, size_t given);
absl::Status WrongArgument(size_t position, const absl::Status& why);

template <typename... T, size_t... I>
absl::StatusOr<std::tuple<T...>> ReadEach(const store::Values& values, std::index_sequence<I...>) {
  std::tuple<absl::StatusOr<T>...> read{ReadValue<T>(values[I])...};
  absl::Status first;
  ((first.ok() && !std::get<I>(read).ok()
        ? static_cast<void>(first = WrongArgument(I, std::get<I>(read).status()))
        : static_cast<void>(0)),
   ...);
  if (!first.ok()) return first;
  return std::tuple<T...>{*std::move(std::get<I>(read))...};
}

}  // namespace internal

// Returns all of `values`, each as its type. Errors: INVALID_ARGUMENT.
template <typename... T>
absl::StatusOr<std::tuple<T...>> ReadValues(const store::Values& values) {
  if (values.size() != sizeof...(T)) return internal::WrongCount(sizeof...(T), values.size());
  return internal::ReadEach<T...>(values, std::index_sequence_for<T...>());
}

namespace internal {

inline absl::StatusOr<store::Values> ToValues(const absl::Status& status) {
  if (!status.ok()) return status;
  return store::Values{};
}
inline absl::StatusOr<store::Values> ToValues(absl::StatusOr<store::Values> values) {
  return values;
}
template <typename T>
absl::StatusOr<store::Values> ToValues(absl::StatusOr<T> result) {
  if (!result.ok()) return result.status();
  return store::Values{store::Value(*std::move(result))};
}

// Calls invoke(arguments...) with the values read as the parameters' types.
template <typename... P, typename F>
absl::StatusOr<store::Values> CallWith(const store::Values& values, F invoke) {
  auto arguments = ReadValues<std::decay_t<P>...>(values);
  if (!arguments.ok()) return arguments.status();
  return ToValues(std::apply(invoke, *std::move(arguments)));
}

}  // namespace internal

template <typename R, typename... P>
SyncFunction Typed(R (*function)(P...)) {
  return [function](const FunctionCall&, const store::Values& values) {
    return internal::CallWith<P...>(values, function);
  };
}
template <typename R, typename... P>
SyncFunction Typed(R (*function)(const FunctionCall&, P...)) {
  return [function](const FunctionCall& call, const store::Values& values) {
    return internal::CallWith<P...>(
        values, [&](auto&&... arguments) { return function(call, std::move(arguments)...); });
  };
}

// For use with FunctionRegistry::RegisterMethod.
template <typename R, typename T, typename... P>
auto TypedMethod(R (T::*method)(P...)) {
  return [method](T& object, const FunctionCall&, const store::Values& values) {
    return internal::CallWith<P...>(
        values, [&](auto&&... arguments) { return (object.*method)(std::move(arguments)...); });
  };
}
template <typename R, typename T, typename... P>
auto TypedMethod(R (T::*method)(P...) const) {
  return [method](const T& object, const FunctionCall&, const store::Values& values) {
    return internal::CallWith<P...>(
        values, [&](auto&&... arguments) { return (object.*method)(std::move(arguments)...); });
  };
}

}  // namespace psd::services
