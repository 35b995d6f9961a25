# Terraform's provider of Kubernetes: typed resources, and a manifest that is planned by a dry run.
terraform {
  required_providers {
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 2.38"
    }
  }
}

provider "kubernetes" {} # KUBE_CONFIG_PATH

resource "kubernetes_namespace_v1" "all" {
  metadata {
    name = "clients-terraform"
  }
}

resource "kubernetes_service_v1" "web" {
  metadata {
    name      = "web"
    namespace = kubernetes_namespace_v1.all.metadata[0].name
    labels    = { app = "web" }
  }
  spec {
    selector = { app = "web" }
    port {
      port = 80
    }
  }
}

resource "kubernetes_manifest" "dataplane" {
  manifest = {
    apiVersion = "mesh.proxima.dev/v1alpha1"
    kind       = "Dataplane"
    metadata   = { name = "web-1", namespace = "default" }
    spec       = { addresses = ["192.0.2.1"], drainSeconds = 0 }
  }
}
