package shop;

import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.client.loadbalancer.LoadBalanced;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Profile;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.client.RestTemplate;

/**
 * A shop of three applications of Spring Cloud, which find each other by Eureka's protocol: stock, orders, which calls
 * it, and shopper, who calls orders. The profile says which one this is. Nothing here is of Proxima.
 */
@SpringBootApplication
public class Shop {
    public static void main(String[] args) {
        SpringApplication.run(Shop.class, args);
    }

    /** Names in its URLs are those of applications. */
    @Bean
    @LoadBalanced
    RestTemplate http() {
        return new RestTemplate();
    }

    /** Says how much there is. */
    @Profile("stock")
    @RestController
    static class Stock {
        @GetMapping("/stock/{goods}")
        String ask(@PathVariable("goods") String goods) {
            return "7 of " + goods + " in stock";
        }
    }

    /** Takes orders of what is in stock. */
    @Profile("orders")
    @RestController
    static class Orders {
        private final RestTemplate http;

        Orders(RestTemplate http) {
            this.http = http;
        }

        @GetMapping("/orders/{goods}")
        String ask(@PathVariable("goods") String goods) {
            return "ordered; " + http.getForObject("http://stock/stock/{goods}", String.class, goods);
        }
    }

    /** Orders something every second. */
    @Profile("shopper")
    @Bean
    CommandLineRunner shopper(RestTemplate http) {
        return args -> {
            for (int n = 1; ; n++) {
                try {
                    System.out.printf("call %d: %s%n", n, http.getForObject("http://orders/orders/tea", String.class));
                } catch (RuntimeException e) {
                    System.out.printf("call %d failed: %s%n", n, e.getMessage());
                }
                Thread.sleep(1000);
            }
        };
    }
}
