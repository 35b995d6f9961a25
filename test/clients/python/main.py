"""The official client of Python, and its dynamic client: write, watch, delete."""

import sys

from kubernetes import client, config, dynamic, watch


def check(ok, what):
    if not ok:
        raise SystemExit(what)


config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()
ns = "clients-python"
core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=ns)))
web = client.V1Service(
    metadata=client.V1ObjectMeta(name="web", labels={"app": "web"}),
    spec=client.V1ServiceSpec(selector={"app": "web"}, ports=[client.V1ServicePort(port=80)]),
)
made = core.create_namespaced_service(ns, web)
check(made.spec.cluster_ip, "no cluster IP")
for event in watch.Watch().stream(core.list_namespaced_service, ns, timeout_seconds=20):
    check(event["type"] == "ADDED" and event["object"].metadata.name == "web", "no event")
    break
core.patch_namespaced_service("web", ns, {"metadata": {"labels": {"tier": "front"}}})
check(len(core.list_namespaced_service(ns, label_selector="tier=front").items) == 1, "list by label")
slices = client.DiscoveryV1Api().list_namespaced_endpoint_slice(ns)
check(slices.metadata.resource_version, "no resource version")
dyn = dynamic.DynamicClient(client.ApiClient())
dataplanes = dyn.resources.get(api_version="mesh.proxima.dev/v1alpha1", kind="Dataplane")
body = {
    "apiVersion": "mesh.proxima.dev/v1alpha1",
    "kind": "Dataplane",
    "metadata": {"name": "web-1", "namespace": ns},
    "spec": {"addresses": ["192.0.2.1"]},
}
dyn.server_side_apply(dataplanes, body=body, name="web-1", namespace=ns, field_manager="python")
check(len(dataplanes.get(namespace=ns).items) == 1, "dataplanes")
gone = core.delete_namespaced_service("web", ns)
check(gone.metadata.name == "web", "the answer to the deletion is not the service")
rules = client.AuthorizationV1Api().create_self_subject_rules_review(
    client.V1SelfSubjectRulesReview(spec=client.V1SelfSubjectRulesReviewSpec(namespace=ns))
)
check(rules.status.resource_rules, "no rules")
check(client.AppsV1Api().list_namespaced_deployment(ns).items == [], "deployments")
core.delete_namespace(ns)
print("done")
