// Functions, and the programs that create values.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/psd.h"

namespace psd {
namespace {

Program Creation(std::string op, const Shape& shape, DType dtype, Attributes attributes) {
  attributes["shape"] = std::vector<int64_t>(shape.extents().begin(), shape.extents().end());
  attributes["dtype"] = static_cast<int64_t>(dtype);
  ProgramBuilder builder;
  auto program = builder.Build({builder.Call(std::move(op), {}, std::move(attributes))});
  PSD_CHECK(program.ok(), program.status().message());
  return *std::move(program);
}

}  // namespace

Program Uniform(const Shape& shape, double low, double high, uint64_t seed, DType dtype) {
  Attributes attributes;
  attributes["low"] = low;
  attributes["high"] = high;
  attributes["seed"] = static_cast<int64_t>(seed);
  return Creation("uniform", shape, dtype, std::move(attributes));
}

Program Normal(const Shape& shape, double mean, double deviation, uint64_t seed, DType dtype) {
  Attributes attributes;
  attributes["mean"] = mean;
  attributes["deviation"] = deviation;
  attributes["seed"] = static_cast<int64_t>(seed);
  return Creation("normal", shape, dtype, std::move(attributes));
}

Program Zeros(const Shape& shape, DType dtype) {
  return Creation("zeros", shape, dtype, {});
}

Program Full(const Shape& shape, double value, DType dtype) {
  Attributes attributes;
  attributes["value"] = value;
  return Creation("full", shape, dtype, std::move(attributes));
}

Function::Function(Program program)
    : program_(std::make_shared<const Program>(std::move(program))),
      fingerprint_(program::FingerprintOf(*program_)) {}

Function Function::Operator(std::string name, int arguments, Attributes attributes) {
  ProgramBuilder builder;
  std::vector<ProgramBuilder::Ref> inputs;
  for (int i = 0; i < arguments; ++i) inputs.push_back(builder.Input());
  ProgramBuilder::Ref result = builder.Call(std::move(name), inputs, std::move(attributes));
  auto program = builder.Build({result});
  PSD_CHECK(program.ok(), program.status().message());
  return Function(*std::move(program));
}

Function Function::Registered(std::string name) {
  Function function;
  function.name_ = std::move(name);
  return function;
}

}  // namespace psd
