#pragma once

// Part 1 of client/psd.h: functions that run on workers, and the values that go in and come out.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/attributes.h"
#include "core/program/program.h"
#include "core/services/calls/functions.h"
#include "core/services/calls/typed_function.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"

namespace psd {

using program::Program;            // a graph of operators that an owner can run; see ProgramBuilder
using program::ProgramBuilder;     // builds a Program, one operator call at a time
using services::FunctionCall;      // passed to a registered function: its caller, and its worker
using services::FunctionRegistry;  // the registered functions that this worker offers
using services::ReadValue;         // converts a Value to a C++ type: ReadValue<double>(results[0])
using services::ReadValues;        // converts all arguments or results of a call
using services::Typed;             // makes a C++ function one that can be registered
using services::TypedMethod;       // the same for a member function
using store::Object;               // base of objects whose methods other workers may call
using store::Value;                // an argument or result: tensor, number, string, list, RRef, …
using Values = std::vector<Value>;  // the arguments or the results of a call

// A function that a worker can be asked to run: a program, or a C++ function registered there. A
// value that is cheap to copy. A program travels to each owner once; later calls send only its
// fingerprint.
class Function {
 public:
  Function(Program program);  // NOLINT: a program is a function
  // A program of one operator ("add", "matmul", "relu", …; core/autograd/operators.h lists them)
  // that takes the call's arguments as its inputs. `arguments` is their number.
  static Function Operator(std::string name, int arguments, Attributes attributes = {});
  // A C++ function that the callee has registered under `name` (see WorkerOptions::functions). A
  // call fails with NOT_FOUND if the callee has none of that name.
  static Function Registered(std::string name);

  const std::shared_ptr<const Program>& program() const { return program_; }
  const program::Fingerprint& fingerprint() const { return fingerprint_; }  // only for programs
  const std::string& name() const { return name_; }                         // empty for programs
  // For the calls that a registered function makes; see FunctionCall.
  operator services::CallTarget() const {  // NOLINT: a function is what a call goes to
    return {program_, fingerprint_, name_};
  }

 private:
  Function() = default;
  std::shared_ptr<const Program> program_;  // shared by copies; null for registered functions
  program::Fingerprint fingerprint_;
  std::string name_;
};

// A creation program has no inputs and one result. GetOrCreate runs it on the owner to make a value
// that does not exist yet.

// The elements are uniform in [low, high). The same seed gives the same elements on every machine.
Program Uniform(const Shape& shape, double low, double high, uint64_t seed,
                DType dtype = DType::kF32);
// The elements are normally distributed. The same seed gives the same elements on every machine.
Program Normal(const Shape& shape, double mean, double deviation, uint64_t seed,
               DType dtype = DType::kF32);
Program Zeros(const Shape& shape, DType dtype = DType::kF32);
Program Full(const Shape& shape, double value, DType dtype = DType::kF32);

}  // namespace psd
