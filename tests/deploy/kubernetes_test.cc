// Checks what a schema cannot check: the manifests agree with each other, and psd accepts the
// configuration in them.

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/host_port.h"
#include "server/daemon/config.h"
#include "server/daemon/config_file.h"

namespace psd {
namespace {

YAML::Node Load(const std::string& file) {
  return YAML::LoadFile("deploy/kubernetes/" + file);
}

class KubernetesTest : public ::testing::Test {
 protected:
  const YAML::Node set_ = Load("statefulset.yaml");
  const YAML::Node pod_ = set_["spec"]["template"]["spec"];
  const YAML::Node container_ = pod_["containers"][0];
  const YAML::Node service_ = Load("service.yaml");
  const YAML::Node config_ = Load("configmap.yaml");
  const YAML::Node budget_ = Load("poddisruptionbudget.yaml");

  // Reads the configuration as a pod does, with the flags of the pod.
  server::DaemonConfig PsdConfig(const std::string& pod = "psd-0") {
    server::ConfigBuilder builder;
    server::AddConfigText("psd.yaml", config_["data"]["psd.yaml"].as<std::string>(), builder);
    for (const YAML::Node& each : container_["args"]) {
      const std::pair<std::string, std::string> flag =
          absl::StrSplit(each.as<std::string>(), absl::MaxSplits('=', 1));
      if (flag.first == "--config") continue;
      builder.Set(flag.first, flag.first.substr(2),
                  absl::StrReplaceAll(flag.second, {{"$(POD_NAME)", pod}}));
    }
    auto config = builder.Build();
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *config : server::DaemonConfig{};
  }
};

TEST_F(KubernetesTest, KindsAndVersions) {
  EXPECT_EQ(set_["kind"].as<std::string>(), "StatefulSet");
  EXPECT_EQ(set_["apiVersion"].as<std::string>(), "apps/v1");
  EXPECT_EQ(service_["kind"].as<std::string>(), "Service");
  EXPECT_EQ(service_["apiVersion"].as<std::string>(), "v1");
  EXPECT_EQ(config_["kind"].as<std::string>(), "ConfigMap");
  EXPECT_EQ(budget_["kind"].as<std::string>(), "PodDisruptionBudget");
  EXPECT_EQ(budget_["apiVersion"].as<std::string>(), "policy/v1");
}

TEST_F(KubernetesTest, SelectorsMeetThePods) {
  const std::string key = "app.kubernetes.io/name";
  const auto label = set_["spec"]["template"]["metadata"]["labels"][key].as<std::string>();
  EXPECT_EQ(set_["spec"]["selector"]["matchLabels"][key].as<std::string>(), label);
  EXPECT_EQ(service_["spec"]["selector"][key].as<std::string>(), label);
  EXPECT_EQ(budget_["spec"]["selector"]["matchLabels"][key].as<std::string>(), label);
}

TEST_F(KubernetesTest, TheServiceIsHeadlessAndGivesTheNames) {
  EXPECT_EQ(service_["spec"]["clusterIP"].as<std::string>(), "None");
  EXPECT_TRUE(service_["spec"]["publishNotReadyAddresses"].as<bool>());
  EXPECT_EQ(set_["spec"]["serviceName"].as<std::string>(),
            service_["metadata"]["name"].as<std::string>());
}

TEST_F(KubernetesTest, TheConfigurationIsOneThatPsdAccepts) {
  const server::DaemonConfig config = PsdConfig();
  EXPECT_TRUE(config.insecure);
  // The registrar is the first pod, under the name that the headless service gives it.
  const auto name = set_["metadata"]["name"].as<std::string>();
  const auto service = set_["spec"]["serviceName"].as<std::string>();
  EXPECT_EQ(config.registrar_name, name + "-0");
  EXPECT_EQ(config.registrar_address, name + "-0." + service + ":7071");
}

TEST_F(KubernetesTest, EveryPodIsAnOwnerAndSaysByWhatNameItIsReached) {
  std::vector<std::string> pods;
  for (int i = 0; i < set_["spec"]["replicas"].as<int>(); ++i)
    pods.push_back(absl::StrCat(set_["metadata"]["name"].as<std::string>(), "-", i));
  for (const std::string& pod : pods) {
    const server::DaemonConfig config = PsdConfig(pod);
    EXPECT_EQ(config.name, pod);
    EXPECT_EQ(config.owners, pods);
    EXPECT_EQ(config.advertise,
              absl::StrCat(pod, ".", set_["spec"]["serviceName"].as<std::string>()));
  }
}

TEST_F(KubernetesTest, OnePortEverywhere) {
  const server::DaemonConfig config = PsdConfig();
  auto listen = ParseHostPort(config.listen);
  ASSERT_TRUE(listen.ok()) << listen.status();
  EXPECT_EQ(container_["ports"][0]["containerPort"].as<int>(), listen->port);
  EXPECT_EQ(service_["spec"]["ports"][0]["port"].as<int>(), listen->port);
  EXPECT_EQ(service_["spec"]["ports"][0]["targetPort"].as<std::string>(),
            container_["ports"][0]["name"].as<std::string>());
  for (const char* probe : {"startupProbe", "readinessProbe", "livenessProbe"})
    EXPECT_EQ(container_[probe]["grpc"]["port"].as<int>(), listen->port) << probe;
}

TEST_F(KubernetesTest, KubernetesWaitsLongerThanTheDrain) {
  const absl::Duration grace = absl::Seconds(pod_["terminationGracePeriodSeconds"].as<int64_t>());
  EXPECT_GT(grace, PsdConfig().drain_timeout);
}

TEST_F(KubernetesTest, ThePodMayDoNothingButServe) {
  EXPECT_TRUE(pod_["securityContext"]["runAsNonRoot"].as<bool>());
  EXPECT_FALSE(pod_["automountServiceAccountToken"].as<bool>());
  const YAML::Node security = container_["securityContext"];
  EXPECT_FALSE(security["allowPrivilegeEscalation"].as<bool>());
  EXPECT_TRUE(security["readOnlyRootFilesystem"].as<bool>());
  EXPECT_EQ(security["capabilities"]["drop"][0].as<std::string>(), "ALL");
}

TEST_F(KubernetesTest, MemoryIsBoundedAboveTheBudget) {
  EXPECT_EQ(container_["resources"]["limits"]["memory"].as<std::string>(), "8Gi");
  EXPECT_LT(PsdConfig().memory_budget_bytes, size_t{8} << 30);
  EXPECT_GT(PsdConfig().memory_budget_bytes, 0u);
}

TEST_F(KubernetesTest, TheConfigMapIsMountedWhereTheArgumentsSay) {
  EXPECT_EQ(pod_["volumes"][0]["configMap"]["name"].as<std::string>(),
            config_["metadata"]["name"].as<std::string>());
  const auto mount = container_["volumeMounts"][0]["mountPath"].as<std::string>();
  EXPECT_EQ(container_["args"][0].as<std::string>(), "--config=" + mount + "/psd.yaml");
  EXPECT_EQ(container_["volumeMounts"][0]["name"].as<std::string>(),
            pod_["volumes"][0]["name"].as<std::string>());
}

TEST_F(KubernetesTest, OneOwnerAtATimeMayBeTaken) {
  EXPECT_EQ(budget_["spec"]["maxUnavailable"].as<int>(), 1);
}

TEST(ExampleConfig, DocumentsEveryFieldWithItsDefault) {
  server::ConfigBuilder builder;
  server::AddConfigFile("deploy/config/example.yaml", builder);
  auto config = builder.Build();
  ASSERT_TRUE(config.ok()) << config.status();
  server::DaemonConfig defaults;
  defaults.name = "owner0";
  EXPECT_EQ(server::FormatConfig(*config), server::FormatConfig(defaults));
  for (const server::ConfigField& field : server::ConfigFields())
    EXPECT_TRUE(builder.IsSet(field.name)) << field.name;
}

}  // namespace
}  // namespace psd
