#include "core/optim/options/optimizer_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/nearest_name.h"
#include "core/base/remedy.h"
#include "core/optim/dense/adadelta.h"
#include "core/optim/dense/adagrad.h"
#include "core/optim/dense/adam.h"
#include "core/optim/dense/adamax.h"
#include "core/optim/dense/adamw.h"
#include "core/optim/dense/rmsprop.h"
#include "core/optim/dense/rprop.h"
#include "core/optim/dense/sgd.h"
#include "core/optim/rows/rowwise_adagrad.h"
#include "core/optim/rows/sparse_adam.h"

namespace psd::optim {

OptimizerRegistry OptimizerRegistry::Builtin() {
  OptimizerRegistry registry;
  registry.factories_ = {{"sgd", NewSgd},
                         {"adagrad", NewAdagrad},
                         {"adam", NewAdam},
                         {"adamw", NewAdamW},
                         {"adamax", NewAdamax},
                         {"adadelta", NewAdadelta},
                         {"rmsprop", NewRmsProp},
                         {"rprop", NewRprop},
                         {"sparse_adam", NewSparseAdam},
                         {"rowwise_adagrad", NewRowwiseAdagrad}};
  return registry;
}

absl::Status OptimizerRegistry::Register(const std::string& type, Factory factory) {
  if (!factories_.emplace(type, std::move(factory)).second) {
    return WithRemedy(absl::AlreadyExistsError(
                          absl::StrCat("an optimizer type '", type, "' is registered already")),
                      "choose another name");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> OptimizerRegistry::Create(
    const OptimizerSpec& spec) const {
  auto found = factories_.find(spec.type);
  if (found != factories_.end()) return found->second(spec);
  NearestNameFinder finder(spec.type);
  for (const auto& [type, factory] : factories_) finder.Consider(type);
  return absl::NotFoundError(
      absl::StrCat("no optimizer type is called '", spec.type, "'", DidYouMean(finder.nearest())));
}

}  // namespace psd::optim
